// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"strings"
	"time"
)

// PullBegan reports that a client asked for an image to be pulled, for the sandbox that the event
// is of, or for none.
type PullBegan struct {
	By    Client `json:"by,omitzero"`
	Image string `json:"image"`
}

func (e PullBegan) line() Line {
	return info(Call, "pull began", e.By.attrs(slog.String("image", e.Image))...)
}

// ImagePulled reports that an image is there, and unpacked.
type ImagePulled struct {
	Image string        `json:"image"`
	Took  time.Duration `json:"took"`
}

func (e ImagePulled) line() Line {
	return info(Call, "image pulled", slog.String("image", e.Image), slog.Duration("took", e.Took))
}

// ProfilePulled reports that a seccomp profile came from a registry.
type ProfilePulled struct {
	Profile string        `json:"profile"`
	Took    time.Duration `json:"took"`
}

func (e ProfilePulled) line() Line {
	return info(Call, "profile pulled", slog.String("profile", e.Profile), slog.Duration("took", e.Took))
}

// ProfileNotPulled reports that a seccomp profile could not be pulled, and why.
type ProfileNotPulled struct {
	Profile string        `json:"profile"`
	Took    time.Duration `json:"took"`
	Err     string        `json:"err"`
}

func (e ProfileNotPulled) line() Line {
	return warn(Call, "profile not pulled", e.Err, slog.String("profile", e.Profile), slog.Duration("took", e.Took))
}

// ProfileRemoved reports that a seccomp profile from a registry was removed. Containers that have
// it keep it.
type ProfileRemoved struct {
	By      Client `json:"by,omitzero"`
	Profile string `json:"profile"` // its digest
}

func (e ProfileRemoved) line() Line {
	return info(Call, "profile removed", e.By.attrs(slog.String("profile", e.Profile))...)
}

// ImageRemoved reports that names of an image were taken away, and the image with the last of them.
type ImageRemoved struct {
	By    Client   `json:"by,omitzero"`
	Image string   `json:"image"`           // its ID
	Names []string `json:"names"`           // that were taken away
	Stays bool     `json:"stays,omitempty"` // under another name
}

func (e ImageRemoved) line() Line {
	attrs := []slog.Attr{slog.String("names", strings.Join(e.Names, ",")), slog.String("image", e.Image)}
	if e.Stays {
		attrs = append(attrs, slog.Bool("stays", true))
	}
	return info(Call, "names of an image removed", e.By.attrs(attrs...)...)
}

// ImageRefused reports that a container of the sandbox was not made because the policy of the node
// does not allow one of its images, or could not be asked.
type ImageRefused struct {
	Container string `json:"container"`
	Err       string `json:"err"`
}

func (e ImageRefused) line() Line {
	return warn(Call, "container not made, the policy does not allow an image or could not be asked", e.Err, slog.String("container", e.Container))
}

// ImageNotPulled reports that an image could not be pulled, and why.
type ImageNotPulled struct {
	Image string        `json:"image"`
	Took  time.Duration `json:"took"`
	Err   string        `json:"err"`
}

func (e ImageNotPulled) line() Line {
	return warn(Call, "image not pulled", e.Err, slog.String("image", e.Image), slog.Duration("took", e.Took))
}
