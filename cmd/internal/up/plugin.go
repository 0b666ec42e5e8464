package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// schedulerSubject is what warnings about the plugin are called.
const schedulerSubject = "scheduler"

// pluginRefused is a plugin that the run requires and cannot use.
type pluginRefused struct{ err error }

// Error gives the message.
func (e *pluginRefused) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *pluginRefused) Unwrap() error { return e.err }

// Catalog makes a plugin's entry of the configuration's.
func Catalog(p config.Plugin) host.Entry {
	e := host.Entry{Name: p.Name, Program: host.File{Path: p.Path, SHA256: p.SHA256}, Interpreter: host.File{Path: p.Interpreter, SHA256: p.InterpreterSHA256},
		InterpreterArgs: p.InterpreterArgs, Args: p.Args, Env: p.Env, Config: p.Config}
	for _, f := range p.Files {
		e.Files = append(e.Files, host.File{Path: f.Path, SHA256: f.SHA256})
	}
	return e
}

// Hosting gives what a configuration bears of its plugin; where it runs and logs
// is for the caller to add.
func Hosting(c *config.Config) host.Options {
	s, o := &c.Scheduler, host.Defaults()
	o.Seed, o.Environ, o.Start, o.Call, o.Strikes = c.Run.Seed, os.Environ(), s.Start.D(), s.Deadline.D(), s.Strikes
	o.Limits = host.Limits{MemoryBytes: uint64(s.Limits.Memory), Tasks: s.Limits.Tasks}
	o.Backoff = host.Backoff{Min: s.BackoffMin.D(), Max: s.BackoffMax.D()}
	return o
}

// startPlugin starts the plugin that the configuration uses, if any, before any
// worker. Without one that is required the run does not begin; without another
// the built-in goes on alone, and the run is degraded.
func (u *up) startPlugin(ctx context.Context) error {
	s := &u.config.Scheduler
	entry, at := s.Plugin()
	if entry == nil {
		return nil
	}
	dir, release, err := admin.OwnedDirectory(u.dir.path)
	if err != nil {
		return err
	}
	o := Hosting(u.config)
	o.Directory, o.Python, o.Staged, o.Changed = dir, u.python.interpreter, u.options.staged, u.pluginChanged
	o.LogPath = func(start int) string {
		return u.dir.join("logs", fmt.Sprintf("scheduler-%s.%d.log", entry.Name, start))
	}
	if u.options.look > 0 {
		o.Look = u.options.look
	}
	o.Cut, o.Waits = u.pluginLogCut, &u.waits
	p, err := host.Start(ctx, Catalog(*entry), o)
	if err != nil {
		err = PluginError(u.config, at, err)
		u.teller.Store(nil)
		u.refusedPlugin(err)
		if closing := release(); closing != nil {
			u.warn("sockets", closing.Error())
		}
		if s.Required == "true" || ctx.Err() != nil {
			return &pluginRefused{err}
		}
		u.warn(schedulerSubject, err.Error()+"; the built-in decides alone")
		return nil
	}
	u.answers.note = u.note
	u.mu.Lock()
	u.plugin, u.pluginRelease = p, release
	u.mu.Unlock()
	u.teller.Load().begin(p.Observe)
	return nil
}

// PluginError says which plugin of a configuration cannot be used, and where the
// configuration says what is refused: each of a plugin's own keys at its place.
func PluginError(c *config.Config, at int, err error) error {
	name, where := c.Scheduler.Plugins[at].Name, fmt.Sprintf("scheduler.plugins[%d]", at)
	var keys host.ConfigErrors
	if !errors.As(err, &keys) {
		return runner.Errorf(runner.KindOf(err), "%s: plugin %s: %w", c.Place(where), name, err).WithHint("%s", runner.HintOf(err))
	}
	var problems config.Problems
	for _, key := range keys {
		p := c.Problem(where+".config."+key.Key, errors.New(key.Msg))
		p.Hint = key.Hint
		problems = append(problems, p)
	}
	_ = problems.Err() // sorts them
	said := make([]string, len(problems))
	for i, p := range problems {
		said[i] = p.String()
	}
	return &runner.Error{Kind: runner.Invalid, Msg: strings.Join(said, "; "), Err: problems} // status has it in one line
}

// stopPlugin ends the plugin, after the loop.
func (u *up) stopPlugin() {
	u.mu.Lock()
	p, release := u.plugin, u.pluginRelease
	u.mu.Unlock()
	if p != nil {
		u.closing(schedulerSubject, p.Close)
		u.closing("sockets", release)
	}
}

// pluginChanged tells of a new state, as an event. From any goroutine.
func (u *up) pluginChanged(s host.State) {
	level := runner.Info
	if s.State == host.Quarantined || s.Strikes > 0 {
		level = runner.Warn
	}
	message := fmt.Sprintf("%s %s: %s", s.Name, s.Version, s.State)
	if s.State != host.Running || s.Strikes > 0 {
		message += fmt.Sprintf(", strike %d, %d answers refused of %d questions: %s", s.Strikes, s.Refused, s.Calls, s.Last)
	}
	u.observe(runner.Event{At: time.Now(), Level: level, Name: "scheduling plugin", Message: message})
}

// pluginLogCut tells what a plugin's full log lost. From any goroutine.
func (u *up) pluginLogCut(path string, lines, bytes uint64) {
	message := fmt.Sprintf("logs/%s is full: %d lines, %d bytes were not kept so far", filepath.Base(path), lines, bytes)
	u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "scheduling plugin log cut", Message: message})
}

// consulted is a plugin as the loop asks it.
type consulted struct {
	plugin  *host.Plugin
	index   *rows.Index
	answers *answers
	total   int // draws of an epoch
	// devices tells of some GPUs as they are now.
	devices func(uuids []string) []scheduler.Device
}

var (
	_ drive.PoolScheduler    = (*consulted)(nil)
	_ drive.FailureScheduler = (*consulted)(nil)
)

// Name gives the plugin's.
func (a *consulted) Name() string { return a.plugin.State().Name }

// Arrange is not asked: ArrangeOf is.
func (a *consulted) Arrange(context.Context, uint32, int, int) ([]runner.Sample, error) {
	return nil, drive.ErrDeclined
}

// ArrangeOf asks the plugin for an order.
func (a *consulted) ArrangeOf(ctx context.Context, asked core.Arrange, pool []runner.Sample) ([]runner.Sample, error) {
	q := a.question(asked, pool)
	out, err := a.plugin.Arrange(ctx, q)
	if err == nil {
		a.answers.arranged(q, out)
	}
	return out, a.declined(scheduler.Arrange, err)
}

// question is what the plugin is asked for an order with.
func (a *consulted) question(asked core.Arrange, pool []runner.Sample) scheduler.ArrangeRequest {
	q := scheduler.ArrangeRequest{Epoch: asked.Epoch, Count: min(asked.Count, len(pool)), Left: asked.Left, Total: a.total, Pool: make([]scheduler.Candidate, len(pool))}
	for _, name := range a.index.Sources {
		q.Sources = append(q.Sources, scheduler.Source{Name: name})
	}
	for _, x := range asked.Losses {
		q.Sources[x.Source].Loss = &x.Loss
	}
	for i, s := range pool {
		info := a.index.Samples[s]
		q.Pool[i] = scheduler.Candidate{Sample: s, Tokens: info.Tokens, Supervised: info.Supervised, Anchors: info.Anchors, Source: int(info.Source)}
	}
	return q
}

// Assign asks the plugin for a target.
func (a *consulted) Assign(ctx context.Context, row runner.RowPlan, free []runner.Worker) (runner.Worker, error) {
	q := scheduler.AssignRequest{Row: row.Row, Bucket: row.Bucket, Free: free}
	for _, p := range row.Pieces {
		q.Tokens += p.Tokens
	}
	w, err := a.plugin.Assign(ctx, q)
	return w, a.declined(scheduler.Assign, err)
}

// OnFailure asks the plugin about a death.
func (a *consulted) OnFailure(ctx context.Context, asked core.Judge) (core.Verdict, error) {
	q := scheduler.FailureRequest{Worker: asked.Life.Worker, Device: asked.Device, Cause: asked.Cause, Message: asked.Message,
		Deaths: uint32(asked.Deaths), Budget: uint32(asked.Budget), Devices: a.devices(asked.Spares)}
	v, err := a.plugin.OnFailure(ctx, q)
	return core.Verdict{Life: asked.Life, Decision: string(v.Decision), Device: v.Device, Reason: v.Reason}, a.declined(scheduler.OnFailure, err)
}

// declined leaves to the built-in what the plugin did not answer: it was
// counted there already, and is shown from there. What it never does is no such
// thing, nor is what was not waited for as the run ended.
func (a *consulted) declined(of scheduler.Capability, err error) error {
	if err == nil {
		a.answers.used.Add(1)
		return nil
	}
	if runner.KindOf(err) != runner.Canceled && a.plugin.Can(of) {
		a.answers.fallbacks.Add(1)
	}
	return fmt.Errorf("%w: %w", drive.ErrDeclined, err)
}
