package up

import (
	"context"
	"os"
	"path/filepath"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// dataStage gives prepared data: training and held-out samples and evaluation
// prompts, made once and kept in the cache under everything they depend on.
func (u *up) dataStage(ctx context.Context, target string) (dataset, error) {
	c := u.config
	r := c.Data.Regenerate
	regenerate := &jobv1.Regenerate{TargetDirectory: target, Corpus: dataCorpus(c), Samples: uint32(r.Samples), HeldoutSamples: uint32(r.HeldoutSamples),
		PromptTokens: uint32(r.PromptTokens), NewTokens: uint32(r.NewTokens), Temperature: r.Temperature, Batch: uint32(r.Batch),
		Seed: c.Run.Seed, Dtype: c.Target.DType, EvalPrompts: uint32(c.Evaluate.Prompts), EvalPromptTokens: uint32(c.Evaluate.PromptTokens)}
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
	d := datasetIn(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return d, runner.Errorf(runner.Unavailable, "make cache: %w", err)
	}
	train, heldout := c.Data.Files, c.Data.HeldoutFiles
	if r.Samples > 0 {
		answers := filepath.Join(dir, "answers")
		regenerate.Directory = answers
		if err := u.make(ctx, "regenerate", filepath.Join(answers, "regenerate.json"), &jobv1.Job{Job: &jobv1.Job_Regenerate{Regenerate: regenerate}}); err != nil {
			return d, err
		}
		train, heldout = []string{filepath.Join(answers, "train.jsonl")}, []string{filepath.Join(answers, "heldout.jsonl")}
		d.prompts = filepath.Join(answers, "prompts.safetensors")
	} else {
		u.board.finish("regenerate", "skipped")
	}
	if exists(filepath.Join(d.train, "index.safetensors")) && exists(filepath.Join(d.heldout, "index.safetensors")) {
		u.board.reused("prepare")
		return d, nil
	}
	u.board.begin("prepare")
	u.board.expect("prepare", 0, len(heldout))
	if err := u.prepare(ctx, target, train, d.train, ""); err != nil {
		return d, err
	}
	u.board.expect("prepare", len(train), 0)
	prompts := ""
	if r.Samples == 0 {
		prompts = d.prompts
	}
	if err := u.prepare(ctx, target, heldout, d.heldout, prompts); err != nil {
		return d, err
	}
	u.board.done("prepare")
	return d, nil
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

// make runs a job whose result appears whole, unless it is there.
func (u *up) make(ctx context.Context, stage, proof string, j *jobv1.Job) error {
	if exists(proof) {
		u.board.reused(stage)
		return nil
	}
	u.board.begin(stage)
	if _, err := u.job(ctx, stage, jobThreads, j); err != nil {
		return err
	}
	u.board.done(stage)
	return nil
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
