// SPDX-License-Identifier: Apache-2.0

package imagestore

// attempt is the next step of a pull, with a memory of the steps before. It is pure.
// [attempt.after] is the only way from one attempt to the next.
//
//	beside ──▶ layered ────┐ its layers are unpacked
//	  │           │        ▼
//	  ├───────────┴───▶ mending ──▶ done
//	  │ it is not an image
//	  ├──▶ placing ───────────────▶ done   an artifact
//	  └──▶ fetching ──────────────▶ done   a checkpoint
//
// A pull begins beside. It goes back there once if the beginning of a blob that an earlier pull had
// left was wrong, and once if a layer that was here is wrong and its blob is missing. An artifact
// or a checkpoint is fetched once more in the first of these cases. If a server sends wrong bytes,
// the same is tried without it, maxLies times. Any other error is the end: the attempt is failed.
type attempt struct {
	at stage
	// all: the blobs of layers that are unpacked already are fetched as well.
	all bool
	// anew: a wrong beginning was discarded, and the image fetched anew.
	anew bool
	// below: a layer below has gone, and the image was unpacked once more.
	below bool
	// lost: the blob of a wrong layer was missing.
	lost bool
	// lies: how many times a server has sent wrong bytes.
	lies int
}

// maxLies is how many times a pull begins anew because a server has sent wrong bytes.
const maxLies = 4

// stage is the work of an attempt.
type stage string

const (
	// stageBeside: the image is fetched, and its layers are unpacked beside each other.
	stageBeside stage = "beside"
	// stageLayered: the image is fetched, and its layers are unpacked one after the other.
	stageLayered stage = "layered"
	// stageMending: the layers that were here before are looked at, and repaired.
	stageMending stage = "mending"
	// stagePlacing: an artifact is fetched, and its files are laid out.
	stagePlacing stage = "placing"
	// stageFetching: a checkpoint is fetched.
	stageFetching stage = "fetching"
	// stageDone: the image can be used.
	stageDone stage = "done"
	// stageFailed: the last error is that of the pull.
	stageFailed stage = "failed"
)

// outcome is the result of an attempt.
type outcome string

const (
	// succeeded: there was no error.
	succeeded outcome = "succeeded"
	// needsParent: a layer can only be unpacked onto those below it.
	needsParent outcome = "needs parent"
	// layerGone: a layer that was here has gone meanwhile.
	layerGone outcome = "layer gone"
	// wrongBeginning: the blob that an earlier pull had begun does not match its digest.
	wrongBeginning outcome = "wrong beginning"
	// wrongBytes: a server has sent wrong bytes, and is not asked for them again.
	wrongBytes outcome = "wrong bytes"
	// anArtifact and aCheckpoint: it has no layers to be unpacked.
	anArtifact  outcome = "is an artifact"
	aCheckpoint outcome = "is a checkpoint"
	// blobMissing: a layer is wrong, and its blob is not here.
	blobMissing outcome = "blob missing"
	// gaveUp: any other error.
	gaveUp outcome = "gave up"
)

// moves are the stages that follow each stage by its outcomes. All others are the end.
var moves = map[stage]map[outcome]stage{
	stageBeside: {
		succeeded:      stageMending,
		needsParent:    stageLayered,
		layerGone:      stageLayered,
		wrongBeginning: stageBeside,
		wrongBytes:     stageBeside,
		anArtifact:     stagePlacing,
		aCheckpoint:    stageFetching,
	},
	stageLayered: {
		succeeded:      stageMending,
		layerGone:      stageLayered,
		wrongBeginning: stageBeside,
		wrongBytes:     stageLayered,
		anArtifact:     stagePlacing,
		aCheckpoint:    stageFetching,
	},
	stageMending:  {succeeded: stageDone, blobMissing: stageBeside},
	stagePlacing:  {succeeded: stageDone, wrongBeginning: stagePlacing, wrongBytes: stagePlacing},
	stageFetching: {succeeded: stageDone, wrongBeginning: stageFetching, wrongBytes: stageFetching},
}

// after returns the attempt that follows a with an outcome.
func (a attempt) after(o outcome) attempt {
	to, ok := moves[a.at][o]
	switch {
	case !ok,
		o == layerGone && a.below,
		o == wrongBeginning && a.anew,
		o == wrongBytes && a.lies == maxLies,
		o == blobMissing && a.lost:
		to = stageFailed
	case o == layerGone:
		a.below = true
	case o == wrongBeginning:
		a.anew, a.below = true, false
	case o == wrongBytes:
		a.lies++
	case o == blobMissing:
		a.lost, a.all, a.below = true, true, false
	case o == anArtifact, o == aCheckpoint:
		a.all, a.anew = true, false
	}
	a.at = to
	return a
}

// over reports whether nothing follows.
func (a attempt) over() bool { return a.at == stageDone || a.at == stageFailed }

// unpacks reports whether layers are unpacked while the image is fetched.
func (a attempt) unpacks() bool { return a.at == stageBeside || a.at == stageLayered }
