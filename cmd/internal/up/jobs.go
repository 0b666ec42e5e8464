package up

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/flock"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// python is an interpreter with everything in it, and the tree that it runs.
type python struct {
	interpreter string
	tree        string // holds the package dflash_runner
	fingerprint string // of the environment: part of every cache key
}

// spins is how long a thread of OpenMP looks for work before it sleeps: a few
// tens of microseconds. None at all doubled a job's time on two quiet cores, and
// the library's own choice cost up to 17 times where others use the cores too.
const spins = "5000"

// environment is what every process of ours is given besides what it inherits.
func (p python) environment(threads int) []string {
	n := itoa(threads)
	return []string{"PYTHONPATH=" + p.tree, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONNOUSERSITE=1", "PYTHONHASHSEED=0",
		"OMP_NUM_THREADS=" + n, "MKL_NUM_THREADS=" + n, "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=" + spins,
		"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false"}
}

// job runs one job and gives its result. progress gets what the job reports;
// a job that fails is an error with its kind and hint.
func (u *up) job(ctx context.Context, name string, threads int, j *jobv1.Job) (*jobv1.Result, error) {
	j.Threads = uint32(threads)
	Tell(j, u.jobDevice())
	in, err := proto.Marshal(j)
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "encode job %s: %w", name, err)
	}
	var result *jobv1.Result
	var failed error
	err = worker.RunJob(ctx, worker.JobSpec{
		Argv: []string{u.python.interpreter, "-m", "dflash_runner.job"}, Env: append(u.python.environment(threads), seeing(u.jobDevice())...),
		Dir: u.dir.path, Stdin: in, LogPath: u.dir.join("logs", name+".log"), Logger: u.log.Named(name), Grace: jobGrace,
	}, func(line []byte) {
		var r jobv1.Report
		if err := protojson.Unmarshal(line, &r); err != nil {
			failed = runner.Errorf(runner.Internal, "read report of job %s: %w", name, err)
			return
		}
		switch r := r.Report.(type) {
		case *jobv1.Report_Progress:
			u.board.progress(name, r.Progress)
		case *jobv1.Report_Result:
			result = r.Result
		case *jobv1.Report_Error:
			kind, _ := runner.ParseKind(r.Error.Kind)
			failed = runner.Errorf(kind, "%s", r.Error.Message).WithHint("%s", r.Error.Hint)
		}
	})
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case result == nil:
		return nil, runner.Errorf(runner.Internal, "run job %s: it ended without a result", name).
			WithHint("see %s", place(u.dir.join("logs", name+".log")))
	}
	for _, w := range result.Warnings {
		u.warn(name, w)
	}
	return result, nil
}

// key names what a job makes by everything that it depends on.
func (u *up) key(parts ...proto.Message) (string, error) {
	h := sha256.New()
	h.Write([]byte("1\n" + u.python.fingerprint + "\n"))
	if d := u.config.Workers.Device; d != placement.CPU {
		h.Write([]byte(d + "\n")) // another kind of device rounds otherwise
	}
	for _, p := range parts {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			return "", runner.Errorf(runner.Internal, "name cache entry: %w", err)
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// targetStage gives the directory of the target, building the embedded one
// where it is not in the cache yet.
func (u *up) targetStage(ctx context.Context) (string, error) {
	c := u.config
	if c.Target.Directory != "" {
		return filepath.Abs(c.Target.Directory)
	}
	e := c.Target.Embedded
	b := &jobv1.BuildTarget{Corpus: corpus(e.Corpus), HiddenSize: uint32(e.HiddenSize), IntermediateSize: uint32(e.IntermediateSize),
		Layers: uint32(e.Layers), Heads: uint32(e.Heads), KvHeads: uint32(e.KVHeads), HeadDim: uint32(e.HeadDim),
		InitializerRange: e.InitializerRange, LearningRate: e.LearningRate, Steps: uint32(e.Steps), Batch: uint32(e.Batch),
		Sequence: uint32(e.SequenceTokens), Seed: e.Seed, WeightDecay: e.WeightDecay}
	key, err := u.key(b)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(u.cache, "targets", key)
	b.Directory = dir
	return dir, u.hold(ctx, "target", flock.Entry{
		Path:  dir,
		Ready: func() bool { return exists(filepath.Join(dir, "target.json")) },
		Make: func(ctx context.Context) error {
			u.board.begin("target")
			_, err := u.job(ctx, "target", jobThreads, &jobv1.Job{Job: &jobv1.Job_BuildTarget{BuildTarget: b}})
			if err == nil {
				u.board.done("target")
			}
			return err
		},
	})
}

// hold takes a cache entry for the rest of the run, making it where it is not
// there. That another run makes it is shown in the stage.
func (u *up) hold(ctx context.Context, stage string, e flock.Entry) error {
	e.Wait = func() {
		u.board.begin(stage)
		u.board.enter(stage, admin.PhaseElsewhere)
		u.note(stage, admin.PhaseElsewhere)
	}
	l, err := e.Hold(ctx)
	if err != nil {
		return err
	}
	u.held = append(u.held, l)
	u.board.reused(stage) // nothing, where it was made here
	return nil
}

// targetTop1 reads how good an embedded target is; nil for a user's own.
func targetTop1(dir string) *float64 {
	var facts struct {
		Top1 *float64 `json:"heldout_top1"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "target.json"))
	if err != nil || json.Unmarshal(b, &facts) != nil {
		return nil
	}
	return facts.Top1
}

// dataset is where prepared data lies.
type dataset struct{ train, heldout, prompts string }

func datasetIn(dir string) dataset {
	return dataset{train: filepath.Join(dir, "train"), heldout: filepath.Join(dir, "heldout"), prompts: filepath.Join(dir, "prompts.safetensors")}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// dataCorpus is where prompts and samples come from.
func dataCorpus(c *config.Config) *jobv1.Corpus {
	if len(c.Data.Files) == 0 {
		return corpus(c.Target.Embedded.Corpus)
	}
	return &jobv1.Corpus{Source: "files", Files: c.Data.Files, HeldoutEvery: uint32(c.Target.Embedded.Corpus.HeldoutEvery)}
}
