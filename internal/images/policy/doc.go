// SPDX-License-Identifier: Apache-2.0

// Package policy decides which images may come to this node, and which containers may be made from:
// by an ordered list of rules in a file, each for namespaces of pods and for registries or
// repositories.
//
// # Promises
//
//   - The first rule that is for the namespace and the image decides, and the last rule is for
//     every image: nothing is left to an unwritten default. A refusal names the rule.
//   - An image is judged by its name before its registry is asked, and by its signatures once the
//     registry has said which digest the name stands for, before anything of the image is fetched.
//     The image of a container is judged again when the container is made.
//   - A failed question is not an answer: a registry that is away, or a verifier that hangs or
//     crashes, is ErrUnavailable with the reason, which lets nothing in and blames no image. Every
//     question has a time-out.
//   - A file that changed holds from the next decision on. One that cannot be used is told in the
//     log and in [Guard.Problems], and lets nothing in, or everything, as it is configured. Without
//     the last rule, or with a rule without a pattern, a file is not used, because it broke off.
//   - Without a file nothing is asked and nothing is waited for.
//   - Nothing is restored from a checkpoint in an image unless a rule allows it. Without rules that
//     can be used none does.
//
// # Never
//
// It does not fetch, keep or remove images, and it does not know pods: an image that was let in
// runs on. It speaks to no registry itself: [Registry] does.
//
// # Files
//
// file.go reads the file, pattern.go has the patterns of a rule, and rules.go decides: all three
// are pure. guard.go keeps the rules that hold now, create.go judges the images of containers, and
// signatures.go asks for signatures: cosign.go reads those that keys of the rule verify,
// verifiers.go runs programs, and verified.go remembers the verified digests.
package policy
