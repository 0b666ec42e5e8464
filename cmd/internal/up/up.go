// Package up is the one place that sees plugins, edges and the loop together:
// it takes a run from its configuration to its exit code.
package up

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/doctor"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/flock"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/kernels"
	"github.com/dflash-runner/dflash-runner/runner/probe"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
	"github.com/dflash-runner/dflash-runner/runner/telemetry"
)

// jobGrace is how long a job may take to end after SIGTERM.
const jobGrace = 5 * time.Second

// jobThreads is how many threads a job computes with, on every machine: another
// number gives other bits, and models that jobs train are too small for more.
const jobThreads = 2

// faultVariable makes workers misbehave on purpose; it is for tests, and the
// run says so where it is set.
const faultVariable = "DFLASH_RUNNER_FAULT"

// Options are what the command line says.
type Options struct {
	ConfigPath string   // empty: the embedded default
	Name       string   // empty: the configuration's
	Set        []string // path=value
	Resume     bool
	// Show is started once the run has a directory, and ended before Run
	// returns: the live view or plain lines. Its error is noted, and the run goes
	// on without it. It may be nil.
	Show func(ctx context.Context, status func() admin.Status, stop func(quick bool)) error
	// Ready is told of the run's directory once its socket answers. May be nil.
	Ready func(directory string)
	// Detached: the run has no terminal and does not end with one.
	Detached bool
	// Alone: this process does nothing else, and may be set up for the run.
	Alone bool
	// Stderr takes errors and hints.
	Stderr *os.File

	staged func(code string) // called between a plugin's check and its start; nil but in tests
	look   time.Duration     // from one look at what a plugin holds to the next; 0, as outside of tests: the host's
}

// intent is what the user asked of the run's name.
func (o Options) intent() intent {
	return intent{explicit: o.Name != "", resume: o.Resume, file: o.ConfigPath}
}

// up is a run while `up` works on it.
type up struct {
	options     Options
	config      *config.Config
	dir         *rundir
	cache       string
	cores       int
	python      python
	log         hclog.Logger
	board       *board
	events      *telemetry.Recorder
	deaths      *deaths // nil until it is open
	metrics     http.Handler
	started     time.Time
	meter       *meter
	environment *pyenv.Env     // nil until it was made or found
	plan        plan.Plan      // from preflight on
	has         plan.Machine   // what there is; from preflight on
	gpus        []doctor.GPU   // of the machine, where the run is on GPUs; from preflight on
	kernels     *kernels.Cache // of compiled kernels; nil where nothing is compiled
	held        []*flock.Lock  // cache entries that the run uses
	teller      atomic.Pointer[teller]
	answers     answers    // of the plugin's answers
	waits       host.Waits // for them

	mu            sync.Mutex // guards below
	loop          *drive.Loop
	launcher      *launcher
	settings      *settings
	store         *store
	sources       []string                 // of the data
	final         *drive.View              // once the loop is over
	phases        map[runner.Worker]string // of warm-up
	watch         *probe.Watch             // of the GPUs; nil on a CPU
	plugin        *host.Plugin             // that decides; nil: the built-in does
	pluginRelease func() error             // of its directory
	refused       string                   // why there is no plugin though one was asked for
	decisions     []admin.Decision         // the newest of each kind
	at            map[runner.Worker]string // where newest lives run
	unfit         map[string]string        // GPUs that are not used again, by UUID, and why
	rate          rate
	resident      residents
	top1          *float64
	exported      string
	tokensBefore  uint64 // committed before this supervisor began
	state         admin.State
	last          admin.Status // newest picture
	warnings      []admin.Reason
	ended         *core.Finish
	quick         bool
	stopping      string // why the run was asked to end, or empty
	cancel        context.CancelFunc
}

// Run takes a run to its end and gives its exit code. Errors and hints are on
// o.Stderr by then.
func Run(ctx context.Context, o Options) int {
	c, err := config.Load(o.ConfigPath, o.Set)
	if err != nil {
		return say(o.Stderr, err, runner.ExitUsage)
	}
	if err := absolute(c); err != nil {
		return say(o.Stderr, err, codeOf(err))
	}
	name := c.Run.Name
	if o.Name != "" {
		name = o.Name
	}
	dir, err := openRun(c.Run.Directory, name, o.intent())
	if err != nil {
		return say(o.Stderr, err, codeOf(err))
	}
	if err := fits(dir, c); err != nil {
		return say(o.Stderr, errors.Join(err, dir.close()), codeOf(err))
	}
	if dir.name != name {
		fmt.Fprintf(o.Stderr, "note: run %s is finished: this one is %s\n", name, dir.name)
	}
	u := &up{options: o, config: c, dir: dir, cores: runtime.NumCPU(), board: newBoard(time.Now), started: time.Now(), meter: newMeter(cpuSeconds), state: admin.Starting, phases: map[runner.Worker]string{}}
	code, err := u.run(ctx)
	if err := dir.close(); err != nil {
		say(o.Stderr, err, 0)
	}
	return say(o.Stderr, err, code)
}

// run opens what stands around the run, works, and writes the end.
func (u *up) run(ctx context.Context) (int, error) {
	ctx, u.cancel = context.WithCancel(ctx)
	defer u.cancel()
	before, err := keep(u.dir)
	if err != nil {
		return codeOf(err), err
	}
	around, err := u.open(ctx)
	if err != nil {
		return codeOf(err), err
	}
	finish, err := u.work(ctx)
	if err != nil {
		finish = core.Finish{Code: codeOf(err), Reason: err.Error()}
		if u.stoppedBy() != "" && ctx.Err() != nil {
			finish, err = u.stoppedWithout(), nil
		}
	}
	finish, next := u.onward(finish)
	hint := runner.HintOf(err)
	if hint == "" {
		hint = next
	}
	err = errors.Join(err, u.end(finish, hint, next))
	err = errors.Join(err, around.close())
	if refused := finish.Code == runner.ExitUsage || finish.Code == runner.ExitPreflight; refused && u.loop == nil {
		err = errors.Join(err, before.restore(u.dir))
	}
	return finish.Code, err
}

// stoppedWithout is the end of a run that was asked to end while it worked for
// no loop: before training, or once all of it was trained.
func (u *up) stoppedWithout() core.Finish {
	u.mu.Lock()
	defer u.mu.Unlock()
	what := "stopped before training: "
	if u.ended != nil {
		what = "stopped before the export: "
	}
	return core.Finish{Code: runner.ExitStopped, Reason: what + u.stopping}
}

// onward says how to go on after an end that is not for good: a stop, or a
// failure once there is something to go on with.
func (u *up) onward(f core.Finish) (_ core.Finish, next string) {
	switch {
	case f.Code == runner.ExitStopped:
		f.Reason, next = u.stopped(f.Reason)
	case f.Code == runner.ExitFailed && hasJournal(u.dir.path):
		_, next = u.stopped(f.Reason)
	}
	return f, next
}

// stopped says what a stop left, and how to go on: a checkpoint, a run at step
// 0, or nothing that could be resumed.
func (u *up) stopped(reason string) (said, hint string) {
	in := u.options.intent()
	in.root = filepath.Dir(u.dir.path)
	all, err := image.List(u.dir.join("checkpoints"))
	switch {
	case err != nil || len(all) > 0: // a directory that cannot be listed holds what it held
		return reason, fmt.Sprintf("go on with `%s`", in.again(u.dir.name, true))
	case hasJournal(u.dir.path):
		return reason + "; no step was trained, so there is no checkpoint", fmt.Sprintf("`%s` begins at step 0 again", in.again(u.dir.name, true))
	}
	if own := u.dir.join("config.yaml"); exists(own) {
		in.file = place(own) // it has what --set changed, and the directory of runs
		in.root = ""
	}
	return reason + "; no step was trained, so there is no checkpoint", fmt.Sprintf("`%s` begins it anew; there is nothing to resume", in.again(u.dir.name, false))
}

// work is the run itself, stage by stage.
func (u *up) work(ctx context.Context) (core.Finish, error) {
	if err := u.preflight(ctx); err != nil {
		return core.Finish{}, err
	}
	if err := u.pythonForPlugin(ctx); err != nil {
		return core.Finish{}, err
	}
	if err := u.startPlugin(ctx); err != nil {
		return core.Finish{}, err
	}
	defer u.stopPlugin()
	if err := u.environmentStage(ctx); err != nil {
		return core.Finish{}, err
	}
	u.place(ctx)
	u.announce()
	defer u.watchGPUs(ctx)()
	target, err := u.targetStage(ctx)
	if err != nil {
		return core.Finish{}, err
	}
	u.mu.Lock()
	u.top1 = targetTop1(target)
	u.mu.Unlock()
	if err := u.config.CheckTarget(target); err != nil {
		return core.Finish{}, err
	}
	s, err := settle(u.config, target)
	if err != nil {
		return core.Finish{}, err
	}
	if err := u.openKernels(s); err != nil {
		return core.Finish{}, err
	}
	data, err := u.dataStage(ctx, target)
	if err != nil {
		return core.Finish{}, err
	}
	finish, image, err := u.train(ctx, s, data)
	if err != nil || finish.Code != runner.ExitDone {
		return finish, err
	}
	if u.stoppedBy() != "" { // the last of training came first
		return u.stoppedWithout(), nil
	}
	exported, err := u.exportStage(ctx, s, image)
	u.mu.Lock()
	u.exported = exported
	u.mu.Unlock()
	return finish, err
}

// codeOf gives the exit code of an error that ended a run before its loop did.
func codeOf(err error) int {
	if refused := (*pluginRefused)(nil); errors.As(err, &refused) { // also for its own configuration
		return runner.ExitPreflight
	}
	var problems config.Problems
	if errors.As(err, &problems) {
		return runner.ExitUsage
	}
	switch runner.KindOf(err) {
	case runner.Invalid, runner.NotFound:
		return runner.ExitUsage
	case runner.Exhausted:
		return runner.ExitPreflight
	}
	return runner.ExitFailed
}

// say prints an error and its hint, if there is one, and passes the code on.
// Each problem of a configuration is an error of its own.
func say(w *os.File, err error, code int) int {
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			fmt.Fprintln(w, "error:", p)
			if p.Hint != "" {
				fmt.Fprintln(w, "hint:", p.Hint)
			}
		}
		return code
	}
	if err != nil {
		fmt.Fprintln(w, "error:", err)
		if hint := runner.HintOf(err); hint != "" {
			fmt.Fprintln(w, "hint:", hint)
		}
	}
	return code
}

func itoa(n int) string { return strconv.Itoa(n) }
