package up

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/cmd/internal/cache"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// builder is a Python that makes the target's directory once it is let through
// a pipe, and fails as the real one does where the directory is there.
const builder = `#!/bin/sh
CACHE="${0%/*}/cache"
dir=$(grep -a -o "$CACHE/targets/[0-9a-f]\{16\}") || exit 3
echo >> "$CACHE/builds"
read -r go < "$CACHE/go"
mkdir "$dir" || exit 1
echo '{}' > "$dir/target.json"
echo '{"result":{}}'
`

// preparing gives a run that stands before its target; end ends it.
func preparing(t *testing.T, root, name string) (u *up, end func()) {
	t.Helper()
	c, err := config.Load("", sets)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := openRun(filepath.Join(root, "runs"), name, intent{explicit: true})
	if err != nil {
		t.Fatal(err)
	}
	u = &up{config: c, dir: dir, cores: 2, board: newBoard(time.Now), meter: newMeter(cpuSeconds), started: time.Now(), state: admin.Starting, phases: map[runner.Worker]string{},
		cache: filepath.Join(root, "cache"), python: python{interpreter: filepath.Join(root, "python"), tree: root, fingerprint: "test"}, cancel: func() {}}
	around, err := u.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return u, func() {
		for _, err := range []error{u.end(core.Finish{Code: runner.ExitStopped}, "", ""), around.close(), dir.close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// newCache gives a root with a short runtime directory, a cache and the builder.
func newCache(t *testing.T) (root, held string) {
	t.Helper()
	root, held = newBench(t).root, ""
	held = filepath.Join(root, "cache")
	if err := os.MkdirAll(held, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "python"), []byte(builder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(held, "go"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, held
}

// inUse lists what cache list says is used, and that none of it can be removed.
func inUse(t *testing.T, root string) (kinds []string) {
	t.Helper()
	all, err := cache.List(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if !e.InUse {
			continue
		}
		kinds = append(kinds, e.Kind)
		if err := cache.Remove(e); runner.KindOf(err) != runner.Unavailable {
			t.Errorf("remove %s %s: got %v", e.Kind, e.Name, err)
		}
	}
	return kinds
}

// TestTwoRunsOnOneTarget: two runs that want the same target at once. One makes
// it; the other waits, says so, takes it, and both keep it from `cache clear`.
func TestTwoRunsOnOneTarget(t *testing.T) {
	root, held := newCache(t)
	type answer struct {
		dir string
		err error
	}
	var ups []*up
	var ends []func()
	answers := make(chan answer, 2)
	for _, name := range []string{"one", "two"} {
		u, end := preparing(t, root, name)
		ups, ends = append(ups, u), append(ends, end)
		go func() { dir, err := u.targetStage(t.Context()); answers <- answer{dir, err} }() // ends with the stage; read below
	}
	waits := func(u *up) bool {
		stages := u.Status().Stages
		return stages[slices.IndexFunc(stages, func(s admin.Stage) bool { return s.Name == "target" })].Phase == admin.PhaseElsewhere
	}
	for deadline := time.Now().Add(time.Minute); !waits(ups[0]) && !waits(ups[1]); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("none of the two waits for the other")
		}
	}
	pipe, err := os.OpenFile(filepath.Join(held, "go"), os.O_RDWR, 0) // which waits for no reader
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if _, err := pipe.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	first, second := <-answers, <-answers
	if first.err != nil || second.err != nil || first.dir != second.dir || !exists(filepath.Join(first.dir, "target.json")) {
		t.Fatalf("got %+v, %+v", first, second)
	}
	if b, err := os.ReadFile(filepath.Join(held, "builds")); err != nil || len(b) != 1 {
		t.Errorf("want it built once, got %d, %v", len(b), err)
	}
	ends[0]()
	if got := inUse(t, held); !slices.Equal(got, []string{"targets"}) {
		t.Errorf("one run is live: want its target in use, got %v", got)
	}
	ends[1]()
	if got := inUse(t, held); len(got) > 0 {
		t.Errorf("no run is live: in use %v", got)
	}
	states := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		s, err := admin.ReadSummary(filepath.Join(root, "runs", name))
		if err != nil {
			t.Fatal(err)
		}
		states[stage(t, s.Stages, "target").State] = true
	}
	if !states[admin.StageDone] || !states[admin.StageReused] {
		t.Errorf("want one that made it and one that took it, got %v", states)
	}
}

// TestDataIsHeld: data that a run takes is in use until the run's end.
func TestDataIsHeld(t *testing.T) {
	root, held := newCache(t)
	u, end := preparing(t, root, "one")
	u.python.interpreter = "/bin/false"
	d, err := u.dataStage(t.Context(), root)
	if err == nil {
		t.Fatal("want nothing made, got no error")
	}
	if got := inUse(t, held); len(got) > 0 {
		t.Errorf("held after an error: %v", got)
	}
	for _, f := range []string{filepath.Join(filepath.Dir(d.train), "answers", "regenerate.json"), filepath.Join(d.train, "index.safetensors"), filepath.Join(d.heldout, "index.safetensors")} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := u.dataStage(t.Context(), root); err != nil || again != d || !strings.HasPrefix(again.train, held) {
		t.Fatalf("got %+v, %v", again, err)
	}
	if got := inUse(t, held); !slices.Equal(got, []string{"data"}) {
		t.Errorf("want the data in use, got %v", got)
	}
	end()
	if got := inUse(t, held); len(got) > 0 {
		t.Errorf("after the end: in use %v", got)
	}
}

// TestAnswersOfASeed: runs of other seeds share answers where these have a seed
// of their own, and only there.
func TestAnswersOfASeed(t *testing.T) {
	root, _ := newCache(t)
	u, end := preparing(t, root, "one")
	defer end()
	u.python.interpreter = "/bin/false" // nothing is made: asked is where it would lie
	in := func(run, answers uint64) string {
		u.config.Run.Seed, u.config.Data.Regenerate.Seed = run, answers
		d, err := u.dataStage(t.Context(), root)
		if err == nil {
			t.Fatal("want nothing made, got no error")
		}
		return d.train
	}
	if in(1, 0) == in(2, 0) {
		t.Error("without a seed of their own: want other answers for another run.seed")
	}
	if in(1, 0) != in(2, 1) {
		t.Error("want the same answers for the same seed of theirs")
	}
}
