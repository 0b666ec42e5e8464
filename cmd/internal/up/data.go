package up

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/flock"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// dataStage gives prepared data: training and held-out samples and evaluation
// prompts, made once and kept in the cache under everything they depend on.
func (u *up) dataStage(ctx context.Context, target string) (dataset, error) {
	c := u.config
	r := c.Data.Regenerate
	regenerate := &jobv1.Regenerate{TargetDirectory: target, Corpus: dataCorpus(c), Samples: uint32(r.Samples), HeldoutSamples: uint32(r.HeldoutSamples),
		PromptTokens: uint32(r.PromptTokens), NewTokens: uint32(r.NewTokens), Temperature: r.Temperature, Batch: uint32(r.Batch),
		Seed: cmp.Or(r.Seed, c.Run.Seed), Dtype: c.Target.DType, EvalPrompts: uint32(c.Evaluate.Prompts), EvalPromptTokens: uint32(c.Evaluate.PromptTokens)}
	prepare := u.prepareJob(target, c.Data.Files)
	files, err := stamps(append(append([]string{}, c.Data.Files...), c.Data.HeldoutFiles...))
	if err != nil {
		return dataset{}, err
	}
	key, err := u.key(regenerate, prepare, files)
	if err != nil {
		return dataset{}, err
	}
	dir := filepath.Join(u.cache, "data", key)
	d, m := datasetIn(dir), recipe{directory: dir, target: target, train: c.Data.Files, heldout: c.Data.HeldoutFiles}
	first := "prepare" // of the stages that make it
	if r.Samples > 0 {
		first, m.regenerate = "regenerate", regenerate
		regenerate.Directory = filepath.Join(dir, "answers")
		m.train, m.heldout = []string{filepath.Join(regenerate.Directory, "train.jsonl")}, []string{filepath.Join(regenerate.Directory, "heldout.jsonl")}
		d.prompts = filepath.Join(regenerate.Directory, "prompts.safetensors")
	} else {
		u.board.finish("regenerate", "skipped")
	}
	m.data = d
	err = u.hold(ctx, first, flock.Entry{Path: dir, Ready: m.ready, Make: func(ctx context.Context) error { return u.makeData(ctx, m) }})
	if err == nil {
		u.board.reused("prepare") // nothing, where it was made here
	}
	return d, err
}

// recipe is what a cache entry of data is made from.
type recipe struct {
	directory, target string
	train, heldout    []string
	regenerate        *jobv1.Regenerate // nil where the user's own samples are taken
	data              dataset
}

// answered says whether the target has written all samples that are asked of it.
func (m recipe) answered() bool {
	return m.regenerate == nil || exists(filepath.Join(m.regenerate.Directory, "regenerate.json"))
}

func (m recipe) ready() bool {
	return m.answered() && exists(filepath.Join(m.data.train, "index.safetensors")) && exists(filepath.Join(m.data.heldout, "index.safetensors"))
}

// makeData makes what is not there yet of an entry that this process alone holds.
func (u *up) makeData(ctx context.Context, m recipe) error {
	if err := os.MkdirAll(m.directory, 0o755); err != nil {
		return runner.Errorf(runner.Unavailable, "make cache: %w", err)
	}
	prompts := m.data.prompts
	if m.regenerate != nil {
		prompts = "" // it writes its own
		if m.answered() {
			u.board.reused("regenerate")
		} else {
			u.board.begin("regenerate")
			if _, err := u.job(ctx, "regenerate", jobThreads, &jobv1.Job{Job: &jobv1.Job_Regenerate{Regenerate: m.regenerate}}); err != nil {
				return err
			}
			u.board.done("regenerate")
		}
	}
	u.board.begin("prepare")
	u.board.expect("prepare", 0, len(m.heldout))
	if err := u.prepare(ctx, m.target, m.train, m.data.train, ""); err != nil {
		return err
	}
	u.board.expect("prepare", len(m.train), 0)
	if err := u.prepare(ctx, m.target, m.heldout, m.data.heldout, prompts); err != nil {
		return err
	}
	u.board.done("prepare")
	return nil
}

func (u *up) prepareJob(target string, files []string) *jobv1.Prepare {
	c := u.config
	longest := c.Training.Buckets[len(c.Training.Buckets)-1]
	return &jobv1.Prepare{TargetDirectory: target, Files: files, MaxTokens: or(c.Data.MaxTokens, longest),
		BlockSize: uint32(c.Drafter.BlockSize), Format: c.Data.Format, MinimumTokens: 2}
}

func (u *up) prepare(ctx context.Context, target string, files []string, directory, prompts string) error {
	j := u.prepareJob(target, files)
	j.Directory = directory
	if prompts != "" {
		j.Prompts, j.EvalPrompts, j.EvalPromptTokens = prompts, uint32(u.config.Evaluate.Prompts), uint32(u.config.Evaluate.PromptTokens)
	}
	_, err := u.job(ctx, "prepare", 1, &jobv1.Job{Job: &jobv1.Job_Prepare{Prepare: j}})
	return err
}

// stamps describes the user's files by name, size and time, so that data made
// from another version of them is made again.
func stamps(files []string) (*jobv1.Corpus, error) {
	out := &jobv1.Corpus{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, runner.Errorf(runner.Invalid, "read data file: %w", err).WithHint("data.files and data.heldout_files are relative to the working directory")
		}
		out.Files = append(out.Files, f, info.ModTime().UTC().String(), itoa(int(info.Size())))
	}
	return out, nil
}

// readIndex reads a dataset's index.
func readIndex(dir string) (*rows.Index, error) {
	name := filepath.Join(dir, "index.safetensors")
	info, err := os.Stat(name)
	if err != nil {
		return nil, runner.Errorf(runner.NotFound, "read index: %w", err)
	}
	if info.Size() > rows.MaxIndexBytes {
		return nil, runner.Errorf(runner.Invalid, "read index %s: want at most %d bytes, got %d", name, int64(rows.MaxIndexBytes), info.Size())
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "read index: %w", err)
	}
	return rows.ParseIndex(name, b)
}

// exportStage turns a checkpoint's image into a drafter directory.
func (u *up) exportStage(ctx context.Context, s *settings, image string) (string, error) {
	dir := u.config.Export.Directory
	if dir == "" {
		dir = u.dir.join("export")
	}
	u.board.begin("export")
	j := &jobv1.Export{Directory: dir, Image: image, Drafter: s.drafter, Target: s.target, Dtype: u.config.Export.DType}
	if _, err := u.job(ctx, "export", 1, &jobv1.Job{Job: &jobv1.Job_Export{Export: j}}); err != nil {
		return "", err
	}
	u.board.done("export")
	return dir, nil
}
