module berth/tools/dist

go 1.26.6

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/in-toto/attestation v1.2.0
	github.com/secure-systems-lab/go-securesystemslib v0.11.1
	golang.org/x/mod v0.42.0
	google.golang.org/protobuf v1.36.11
)

require (
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
