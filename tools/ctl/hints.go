// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// hints are the commands of docker, podman, nerdctl, crictl and kubectl that berth has under
// another name, and those that it does not have, with the way to the same end.
var hints = map[string]string{
	"annotate":      "labels and annotations are those of the manifest; see `berth inspect`",
	"apply":         "`berth play POD.yaml`",
	"build":         "berth builds no images; build one elsewhere and use `berth import FILE`",
	"commit":        "berth makes no images; `berth checkpoint` saves a container that runs",
	"compose":       "`berth play POD.yaml`",
	"container":     "`berth ps`, `berth inspect`, `berth stop` and `berth rm` take containers",
	"cordon":        "it is kubectl's: the scheduler has to know; docs/operations.md has the drain of a node",
	"create":        "`berth play POD.yaml` or `berth run IMAGE`",
	"delete":        "`berth rm NAME`; `berth rm -f` also stops it",
	"describe":      "`berth why NAME` and `berth timeline NAME`, or `berth inspect NAME`",
	"diff":          "`berth checkpoint` saves the files that differ from the image",
	"drain":         "it is kubectl's: the scheduler has to know; docs/operations.md has the drain of a node",
	"explain":       "`berth why NAME`",
	"export":        "`berth checkpoint NAME FILE`, or `berth cp NAME:/ DIR` for the files",
	"get":           "`berth pods`, `berth ps` and `berth images`",
	"history":       "`berth inspect IMAGE` has the configuration of an image with its history",
	"image":         "`berth images`; `berth images rm` removes one",
	"imagefsinfo":   "`berth df`",
	"img":           "`berth images`",
	"info":          "`berth status`",
	"inspecti":      "`berth inspect IMAGE`",
	"inspectp":      "`berth inspect POD`",
	"kill":          "`berth stop NAME`; `--timeout 0` kills at once",
	"kube":          "`berth play POD.yaml`",
	"list":          "`berth ps`, or `berth pods`",
	"load":          "`berth import FILE`",
	"login":         "`berth pull` reads ~/.docker/config.json, and --creds-stdin; image.auth is for the kubelet's pulls",
	"logout":        "berth stores no passwords of people",
	"ls":            "`berth ps`, or `berth pods`",
	"metricsp":      "`berth top`, or the metrics of docs/metrics.md",
	"network":       "the network of pods is CNI's; `berth status` has its configuration, `berth inspect POD` the addresses",
	"node":          "`berth status` and `berth top`",
	"pause":         "it is not in CRI; `berth checkpoint` saves a container and goes on",
	"pod":           "`berth pods`, or `berth play POD.yaml`",
	"port":          "`berth port-forward POD PORT`, and `berth inspect POD` for its host ports",
	"prune":         "`berth images prune`",
	"push":          "berth sends no images to registries",
	"rename":        "names are those of the manifest",
	"restart":       "restarts are the kubelet's, or those of `berth play --watch`; `berth stop NAME` lets it start another attempt",
	"rmi":           "`berth images rm IMAGE`",
	"rmp":           "`berth rm POD`",
	"rollout":       "it is kubectl's",
	"runp":          "`berth play POD.yaml`",
	"runtimeconfig": "`berth config show`",
	"save":          "images are saved where they come from; `berth checkpoint` saves a container",
	"scale":         "it is kubectl's",
	"search":        "a registry is searched on its own page",
	"sh":            "`berth exec -it NAME sh`",
	"start":         "a container is started once; `berth play POD.yaml` or `berth run IMAGE` makes another",
	"statsp":        "`berth stats POD`",
	"stopp":         "`berth stop POD`",
	"system":        "`berth df`, `berth images prune` and `berth status`",
	"tag":           "names are given by `berth pull` and `berth import --ref`",
	"uncordon":      "it is kubectl's",
	"unpause":       "it is not in CRI",
	"up":            "`berth play POD.yaml --watch`",
	"update":        "resources are those of the manifest, and updated by the kubelet",
	"volume":        "volumes are those of the manifest; `berth inspect NAME` has the mounts",
	"wait":          "`berth play --wait`, or `berth events`",
}

// hinted answers a command that berth does not have: by the right name of the same thing, or by
// names that are spelled alike.
func hinted(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	text := fmt.Sprintf("there is no command %q", strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "berth "))
	if hint, ok := hints[strings.ReplaceAll(strings.ToLower(args[0]), "-", "")]; ok && !cmd.HasParent() {
		return fmt.Errorf("%s: %s", text, hint)
	}
	if alike := cmd.SuggestionsFor(args[0]); len(alike) > 0 {
		return fmt.Errorf("%s; did you mean %s?", text, strings.Join(alike, " or "))
	}
	return fmt.Errorf("%s; `%s --help` lists them", text, cmd.CommandPath())
}
