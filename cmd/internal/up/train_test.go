package up

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// These tests run everything of a run's training but Python: real processes
// under go-plugin, their lanes, arenas, images, journal, checkpoints, socket.

// sets is a small run: three epochs of six steps.
var sets = []string{"training.steps=0", "training.epochs=3", "training.rows_per_step=4", "training.buckets=[64]", "training.anchors=8",
	"training.horizon_steps=2", "images.every_steps=2", "checkpoints.every_steps=4", "checkpoints.keep_last=2", "evaluate.prompts=3",
	"evaluate.heldout_samples=4", "workers.targets=1", "workers.drafters=2", "workers.slots=3", "warmup.width=1", "failure.restarts=8",
	"failure.backoff_min=10ms", "failure.backoff_max=100ms", "workers.turns=2", "data.regenerate.prompt_tokens=16", "data.regenerate.new_tokens=32", "evaluate.prompt_tokens=16", "evaluate.new_tokens=8"}

const lastStep = 18

// bench is a run around the loop.
type bench struct {
	t    *testing.T
	root string
	data dataset

	prepare func(*up) // called before the run; nil: nothing is done
}

func newBench(t *testing.T) *bench {
	short, err := os.MkdirTemp("", "dfr") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	t.Setenv("XDG_RUNTIME_DIR", short)
	b := &bench{t: t, root: t.TempDir()}
	b.data = datasetIn(b.root)
	if err := os.MkdirAll(b.data.train, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.data.train, "index.safetensors"), index(t, 96), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// index lays out a data index of n samples of 16 tokens; one has no anchor.
func index(t *testing.T, n int) []byte {
	zeros := strings.Repeat("00", 32)
	head := map[string]any{"__metadata__": map[string]string{"format": rows.IndexFormat, "sources": `["test"]`, "data_sha256": zeros,
		"data_bytes": "1536", "tokenizer_sha256": zeros, "skipped": "[]"}}
	var data []byte
	add := func(name, dtype string, size int, value func(i int) uint64) {
		from := len(data)
		for i := range n {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], value(i))
			data = append(data, b[:size]...)
		}
		head[name] = map[string]any{"dtype": dtype, "shape": []int{n}, "data_offsets": []int{from, len(data)}}
	}
	add("offset", "I64", 8, func(i int) uint64 { return uint64(16 * i) })
	add("tokens", "I32", 4, func(int) uint64 { return 16 })
	add("supervised", "I32", 4, func(int) uint64 { return 8 })
	add("anchors", "I32", 4, func(i int) uint64 {
		if i == 7 {
			return 0
		}
		return 2
	})
	add("source", "I32", 4, func(int) uint64 { return 0 })
	text, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), data...)
}

// run trains under a name; during is called in a goroutine beside it.
func (b *bench) run(name string, resume bool, during func(u *up), more ...string) (core.Finish, *up) {
	t := b.t
	t.Helper()
	c, err := config.Load("", append(append([]string{}, sets...), more...))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := openRun(filepath.Join(b.root, "runs"), name, intent{explicit: true, resume: resume})
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	u := &up{config: c, dir: dir, cores: 2, board: newBoard(time.Now), meter: newMeter(cpuSeconds), started: time.Now(), state: admin.Starting, phases: map[runner.Worker]string{},
		python: python{interpreter: program, tree: b.root, fingerprint: "test"}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	u.cancel = cancel
	if b.prepare != nil {
		b.prepare(u)
	}
	around, err := u.open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.preflight(ctx); err != nil {
		t.Fatal(err)
	}
	if err := u.startPlugin(ctx); err != nil {
		t.Fatal(err)
	}
	u.place(ctx)
	u.announce()
	beside := make(chan struct{})
	go func() { // ends with during; waited for below
		defer close(beside)
		if during != nil {
			during(u)
		}
	}()
	f, _, err := u.train(ctx, b.settings(c), b.data)
	if err != nil {
		t.Error(err)
	}
	<-beside
	u.stopPlugin() // before the run's end, as work does
	for _, err := range []error{u.end(f, "", ""), around.close(), dir.close()} {
		if err != nil {
			t.Error(err)
		}
	}
	return f, u
}

func (b *bench) settings(c *config.Config) *settings {
	w := workertest.Configuration(workerv1.Role_ROLE_TARGET, 0, 1)
	w.Training.Buckets, w.Training.RowsPerStep = unsigned(c.Training.Buckets), uint32(c.Training.RowsPerStep)
	w.Drafter.Precision = precision(c.Drafter.Precision)
	return &settings{config: c, target: w.Target, drafter: w.Drafter, training: w.Training}
}

// check proves a whole run from its files, and gives the last image's digest.
func (b *bench) check(f core.Finish, u *up) string {
	t := b.t
	t.Helper()
	if f.Code != runner.ExitDone {
		t.Errorf("finish %+v, failures %+v", f, u.last.Failures)
	}
	ix, err := readIndex(b.data.train)
	if err != nil {
		t.Fatal(err)
	}
	c, err := RowsConfig(u.config, ix)
	if err != nil {
		t.Fatal(err)
	}
	r, err := journal.Verify(u.dir.join("journal"), journal.Facts{Index: ix, Config: c, BitIdentical: true})
	if err != nil {
		t.Errorf("I6: %v", err)
	}
	if r.Committed != lastStep || r.Epochs != 3 || r.Samples != 3*95 || !r.Ended {
		t.Errorf("the journal holds %+v", r)
	}
	s, err := admin.ReadSummary(u.dir.path)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "dflash-runner", "*")); err != nil || len(left) > 0 {
		t.Errorf("the run left %v in the runtime directory, %v", left, err)
	}
	if s.Gate.MaxHolders != 1 {
		t.Errorf("I2: %d workers held the gate at once", s.Gate.MaxHolders)
	}
	facts, err := image.Verify(u.dir.join("checkpoints", image.Name(lastStep)))
	if err != nil {
		t.Error(err)
	}
	return facts.Image
}

// atStep waits until a step is decided and gives the status; ok is false where
// the run ended first.
func atStep(u *up, n runner.Step) (admin.Status, bool) {
	for {
		if s := u.Status(); s.Step >= n {
			return s, true
		}
		u.mu.Lock()
		over := u.ended != nil
		u.mu.Unlock()
		if over {
			return admin.Status{}, false
		}
		time.Sleep(5 * time.Millisecond) // between looks
	}
}

// strike kills a worker's process at some moment after a step was decided. It
// gives false where the worker does not run then.
func strike(u *up, n runner.Step, name string, g *rand.Rand) bool {
	s, ok := atStep(u, n)
	if !ok {
		return false
	}
	time.Sleep(time.Duration(g.IntN(20)) * time.Millisecond) // any moment will do
	for _, w := range s.Workers {
		if w.Name.String() == name && w.Pid > 0 {
			return syscall.Kill(w.Pid, syscall.SIGKILL) == nil
		}
	}
	return false
}

// TestI7_StruckRunEqualsUndisturbed: a run whose every worker was killed at a
// random moment ends with the very image of one that was left alone.
func TestI7_StruckRunEqualsUndisturbed(t *testing.T) {
	b := newBench(t)
	f, u := b.run("whole", false, nil)
	whole := b.check(f, u)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := rand.New(rand.NewPCG(seed, 1))
	struck := 0
	f, u = b.run("struck", false, func(u *up) {
		for i, name := range []string{"target/0", "drafter/0", "drafter/1", "target/0"} {
			if strike(u, runner.Step(2+4*i), name, g) {
				struck++
			}
		}
	})
	if got := b.check(f, u); got != whole {
		t.Errorf("the struck run ends with image %s, the undisturbed with %s", got, whole)
	}
	if struck < 3 || len(u.last.Failures) < 3 {
		t.Errorf("%d strikes, failures %+v", struck, u.last.Failures)
	}
	for _, x := range u.last.Failures {
		if x.Cause != runner.CauseSignal || x.Signal != "SIGKILL" || x.ForcedBySelf {
			t.Errorf("failure %+v", x)
		}
	}
	for _, w := range u.last.Workers {
		if w.Pid != 0 && syscall.Kill(w.Pid, 0) == nil {
			t.Errorf("I8: %v, pid %d, outlives its run", w.Name, w.Pid)
		}
	}
}

// TestI7_StoppedAndResumed: a signal's stop saves, and a resume ends with the
// image of a run that was never stopped.
func TestI7_StoppedAndResumed(t *testing.T) {
	b := newBench(t)
	f, u := b.run("run", false, func(u *up) {
		if _, ok := atStep(u, 5); ok {
			strike(u, 5, "target/0", rand.New(rand.NewPCG(1, 1)))
			for len(u.Status().Failures) == 0 && !u.isOver() {
				time.Sleep(5 * time.Millisecond) // between looks
			}
			u.stop(false, "signal terminated")
		}
	})
	if f.Code != runner.ExitStopped || len(u.last.Failures) != 1 {
		t.Fatalf("finish %+v, failures %+v", f, u.last.Failures)
	}
	died := u.last.Failures[0]
	at := u.final.Step
	if _, err := image.Verify(u.dir.join("checkpoints", image.Name(at))); err != nil {
		t.Errorf("stopped at step %d: %v", at, err)
	}
	f, u = b.run("run", true, nil)
	resumed := b.check(f, u)
	if got := u.last.Failures; len(got) != 1 || got[0].Worker != died.Worker || !got[0].At.Equal(died.At) {
		t.Errorf("the resumed run tells of the deaths %+v, want the one before", got)
	}
	if u.final.Lineage != 2 || u.final.Rows != 72 || u.final.Tokens != 3*95*16 {
		t.Errorf("lineage %d, %d rows, %d tokens", u.final.Lineage, u.final.Rows, u.final.Tokens)
	}
	f, u = b.run("whole", false, nil)
	if whole := b.check(f, u); whole != resumed {
		t.Errorf("resumed to image %s, undisturbed %s", resumed, whole)
	}
}

// TestStoppedInTheLastEvaluation: a stop gives the evaluation up, the checkpoint
// of the last step is there, and a resume evaluates it.
func TestStoppedInTheLastEvaluation(t *testing.T) {
	b := newBench(t)
	long := []string{"evaluate.prompts=400", "evaluate.heldout_samples=800", "data.regenerate.heldout_samples=1200"}
	evaluates := func(u *up) bool {
		for _, s := range u.Status().Stages {
			if s.Name == "evaluate_after" && s.State == admin.StageRunning {
				return true
			}
		}
		return false
	}
	f, u := b.run("run", false, func(u *up) {
		if _, ok := atStep(u, lastStep); !ok {
			return
		}
		for !evaluates(u) && !u.isOver() && u.stoppedBy() == "" {
			u.mu.Lock()
			over := u.ended != nil
			u.mu.Unlock()
			if over {
				return
			}
		}
		u.stop(false, "signal interrupt")
	}, long...)
	if f.Code != runner.ExitStopped || f.Reason != "signal interrupt" {
		t.Fatalf("finish %+v", f)
	}
	if s, err := admin.ReadSummary(u.dir.path); err != nil || s.AcceptanceAfter != nil || s.Steps != lastStep || s.Checkpoint != image.Name(lastStep) {
		t.Errorf("summary %+v, %v", s, err)
	}
	f, u = b.run("run", true, nil, long...)
	b.check(f, u)
	if s, err := admin.ReadSummary(u.dir.path); err != nil || s.AcceptanceAfter == nil || s.Prompts != 400 {
		t.Errorf("the resumed run has not evaluated: %+v, %v", s, err)
	}
}

// TestFailureTellsWhy: the report of a worker that hung holds its stacks, and
// that of one that answered with an error holds the error's traceback.
func TestFailureTellsWhy(t *testing.T) {
	for fault, want := range map[string]struct {
		cause runner.Cause
		line  string
	}{
		"hang":   {runner.CauseDeadline, "most recent call first"},
		"broken": {runner.CauseCUDA, "File model, line 1"},
		"deaf":   {runner.CauseProtocol, ""}, // closes its lane and lives on
	} {
		t.Run(fault, func(t *testing.T) {
			t.Setenv(faultVariable, fault)
			b := newBench(t)
			f, u := b.run("run", false, nil, "failure.deadlines.order=3s")
			b.check(f, u)
			if len(u.last.Failures) != 1 {
				t.Fatalf("failures %+v", u.last.Failures)
			}
			x := u.last.Failures[0]
			if x.Worker.String() != "drafter/1" || x.Cause != want.cause || x.LastOrder == "" || len(x.Traceback) > 0 != (want.line != "") || !strings.Contains(strings.Join(x.Traceback, "\n"), want.line) {
				t.Errorf("failure %+v", x)
			}
		})
	}
}
