package up

import (
	"math"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// settings is a configuration joined with what its target's directory says:
// every number that workers and jobs are told.
type settings struct {
	config   *config.Config
	target   *workerv1.Target
	drafter  *workerv1.Drafter
	training *workerv1.Training
}

// settle joins the configuration with the model in directory. The directory
// was checked against the configuration before.
func settle(c *config.Config, directory string) (*settings, error) {
	m, err := config.ReadModel(directory)
	if err != nil {
		return nil, err
	}
	mask := c.Drafter.MaskTokenID
	if mask < 0 {
		id, ok, err := config.MaskToken(directory)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, runner.Errorf(runner.Invalid, "settle drafter: the tokenizer in %s names no mask token", directory).
				WithHint("set drafter.mask_token_id to a token that never stands in text")
		}
		mask = id
	}
	ids := c.CapturedLayers(m.Layers)
	t := c.Training
	s := &settings{config: c,
		target: &workerv1.Target{Directory: directory, Dtype: c.Target.DType, LayerIds: unsigned(ids)},
		drafter: &workerv1.Drafter{Layers: uint32(c.Drafter.Layers), HiddenSize: or(c.Drafter.HiddenSize, m.HiddenSize),
			IntermediateSize: or(c.Drafter.IntermediateSize, m.IntermediateSize), Heads: or(c.Drafter.Heads, m.Heads),
			KvHeads: or(c.Drafter.KVHeads, m.KVHeads), HeadDim: or(c.Drafter.HeadDim, m.HeadDim),
			VocabSize: uint32(m.VocabSize), RmsNormEps: m.RMSNormEps, RopeTheta: m.RopeTheta,
			BlockSize: uint32(c.Drafter.BlockSize), MaskTokenId: uint32(mask), TargetLayers: uint32(m.Layers),
			InitFrom: c.Drafter.InitFrom, MaxPositionEmbeddings: or(m.MaxPositions, 32768), Precision: precision(c.Drafter.Precision)},
		training: &workerv1.Training{Buckets: unsigned(t.Buckets), Anchors: uint32(t.Anchors), Gamma: t.Gamma,
			WeightConstant: weightConstant(t.RowsPerStep*t.DrawsPerRow, t.Anchors, c.Drafter.BlockSize, t.Gamma),
			Beta1:          t.Betas[0], Beta2: t.Betas[1], Epsilon: t.Epsilon, WeightDecay: t.WeightDecay, ClipNorm: t.ClipNorm,
			RowsPerStep: uint32(t.RowsPerStep), ComputeDtype: t.ComputeDType, DrawsPerRow: several(t.DrawsPerRow)},
	}
	return s, nil
}

// precision is one as a worker is told it: the default is not said, as in
// manifests and compile caches of runs that could have no other.
func precision(of string) string {
	if of != config.PrecisionFP8 {
		return ""
	}
	return of
}

// several is a number of draws as a worker is told it: one is not said, as in
// manifests of runs that could have no other.
func several(draws int) uint32 {
	if draws == 1 {
		return 0
	}
	return uint32(draws)
}

// weightConstant is W0: the weight of a step whose every place is full. The
// loss is divided by it before the backward and the sum rescaled by W0/Σw after.
func weightConstant(rows, anchors, block int, gamma float64) float64 {
	w := 0.0
	for k := 1; k < block; k++ {
		w += math.Exp(-float64(k-1) / gamma)
	}
	return w * float64(rows) * float64(anchors)
}

// configuration is what one worker is told.
func (s *settings) configuration(life runner.Life, d *rundir, data dataset, device string) *workerv1.Configuration {
	c := s.config
	out := &workerv1.Configuration{Rank: uint32(life.Worker.Rank), WorldSize: uint32(c.Workers.Drafters),
		Generation: uint32(life.Generation), Device: device, Threads: uint32(c.Workers.Threads), Seed: c.Run.Seed,
		Attention: c.Drafter.Attention, Target: s.target, Drafter: s.drafter, Training: s.training,
		CommunicatorDirectory: d.join("communicators"), TrainData: data.train, Flex: flex(c.Drafter.Flex)}
	if life.Worker.Role == runner.Target {
		out.Attention, out.Flex = c.Target.Attention, nil // the sizes of kernels are for a drafter's
		out.Role = workerv1.Role_ROLE_TARGET
		out.Target = &workerv1.Target{Directory: s.target.Directory, Dtype: s.target.Dtype, LayerIds: s.target.LayerIds,
			Replay: c.Target.Replay == "true"} // how it makes rows: the rest is the run's for good
		out.HeldoutData, out.Prompts = data.heldout, data.prompts
	} else {
		out.Role = workerv1.Role_ROLE_DRAFTER
	}
	return out
}

// flex is how the kernels of compiled attention are built, as a worker is told.
func flex(f config.Flex) *workerv1.Flex {
	return &workerv1.Flex{Backend: f.Backend,
		BlockM: uint32(f.BlockM), BlockN: uint32(f.BlockN), Warps: uint32(f.Warps), Stages: uint32(f.Stages),
		BackwardBlockM1: uint32(f.BackwardBlockM1), BackwardBlockN1: uint32(f.BackwardBlockN1),
		BackwardBlockM2: uint32(f.BackwardBlockM2), BackwardBlockN2: uint32(f.BackwardBlockN2),
		BackwardWarps: uint32(f.BackwardWarps), BackwardStages: uint32(f.BackwardStages),
		CopyKeys: f.CopyKeys == "true", Replay: f.Replay == "true"}
}

// corpus is the configuration's corpus as jobs are told it.
func corpus(c config.Corpus) *jobv1.Corpus {
	return &jobv1.Corpus{Source: c.Source, Files: c.Files, MaxBytes: uint64(c.MaxBytes), HeldoutEvery: uint32(c.HeldoutEvery)}
}

func unsigned(in []int) []uint32 {
	out := make([]uint32, len(in))
	for i, v := range in {
		out[i] = uint32(v)
	}
	return out
}

func or(v, otherwise int) uint32 {
	if v == 0 {
		v = otherwise
	}
	return uint32(v)
}
