// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/images/policy"
)

// exitRefused is the exit code of `images allowed` where an image is not allowed.
const exitRefused = 3

// verdict is the decision of a policy about an image.
type verdict struct {
	Image     string `json:"image"`
	Namespace string `json:"namespace"`
	Allowed   bool   `json:"allowed"`
	Rule      string `json:"rule"`
	Why       string `json:"why,omitempty"`
	// Keys and VerifierDir describe the required signatures; without both none are required.
	Keys        int    `json:"keys,omitempty"`
	VerifierDir string `json:"verifierDir,omitempty"`
}

func imagesAllowedCommand(pr *printer) *cobra.Command {
	var file, config, namespace string
	cmd := &cobra.Command{
		Use:   "allowed [IMAGE...]",
		Short: "Say which rule of the image policy decides on images, or check its file",
		Long: "Say which rule of the image policy decides on images by their names, as the file is now. No service and no registry is\n" +
			"asked: whether an image has the signatures that a rule wants is found out by a pull. Without an image the file is\n" +
			"checked, and its rules are listed. The exit code is 0 if all images are allowed, 3 if one is not, and 1 if the file\n" +
			"cannot be used.",
	}
	cmd.Flags().StringVar(&file, "file", "", "file of the policy (default: image.policy_file of the configuration)")
	cmd.Flags().StringVar(&config, "config", "", "configuration file (default "+defaultConfig+", if it exists)")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod; without one, the image is for no pod")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" {
			c, err := load(config)
			if err != nil {
				return err
			}
			if file = c.Image.PolicyFile; file == "" {
				return errors.New("every image is allowed: image.policy_file is not set; name a file by --file to try one")
			}
		}
		p, err := policy.Load(file)
		if err != nil {
			return fmt.Errorf("the image policy cannot be used: %w", err)
		}
		if len(args) == 0 {
			return listRules(pr, cmd, p)
		}
		var list []verdict
		refused := 0
		for _, ref := range args {
			d, err := p.Decide(namespace, ref)
			if err != nil {
				return err
			}
			if !d.Allowed {
				refused++
			}
			list = append(list, verdict{
				Image:       ref,
				Namespace:   namespace,
				Allowed:     d.Allowed,
				Rule:        d.Rule.Name,
				Why:         d.Why,
				Keys:        len(d.Rule.Keys),
				VerifierDir: d.Rule.VerifierDir,
			})
		}
		err = pr.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
			fmt.Fprintln(w, "IMAGE\tDECISION\tRULE\tWHY")
			for _, v := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", oneLine(v.Image), v.decision(), v.Rule, v.because())
			}
		})
		if err == nil && refused > 0 {
			err = exitError{exitRefused, fmt.Errorf("%d of %d images are not allowed", refused, len(args))}
		}
		return err
	}
	return cmd
}

func (v verdict) decision() string {
	switch {
	case !v.Allowed:
		return "refused"
	case v.Keys > 0 || v.VerifierDir != "":
		return "allowed if signed"
	}
	return "allowed"
}

func (v verdict) because() string {
	switch {
	case v.Why != "":
		return v.Why
	case v.Keys > 0 && v.VerifierDir != "":
		return fmt.Sprintf("by one of %d keys, and accepted by the programs of %s", v.Keys, v.VerifierDir)
	case v.Keys > 0:
		return fmt.Sprintf("by one of %d keys", v.Keys)
	case v.VerifierDir != "":
		return "accepted by the programs of " + v.VerifierDir
	}
	return "-"
}

// listRules prints the purpose of each rule.
func listRules(pr *printer, cmd *cobra.Command, p *policy.Policy) error {
	type listed struct {
		Rule   string `json:"rule"`
		For    string `json:"for"`
		Action string `json:"action"`
	}
	var list []listed
	for _, r := range p.Rules {
		action := "deny"
		if r.Allow {
			action = "allow"
		}
		if r.DigestOnly {
			action += " by digest"
		}
		if r.Signed() {
			action += " if signed"
		}
		if r.Restore {
			action += ", and restores"
		}
		list = append(list, listed{r.Name, r.For(), action})
	}
	return pr.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
		fmt.Fprintln(w, "RULE\tACTION\tFOR")
		for _, l := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\n", l.Rule, l.Action, l.For)
		}
	})
}
