package up

import (
	"context"
	"strconv"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/probe"
)

// How GPUs are watched. The first answer brings the driver's library up; a
// probe that is stuck in the driver cannot be waited for at the end.
const (
	probeEvery      = 2 * time.Second
	probeFirst      = 30 * time.Second
	probeDeadline   = 10 * time.Second
	probeBackoffMin = time.Second
	probeBackoffMax = time.Minute
	probeLived      = time.Minute
	probeGrace      = time.Second // from SIGTERM to SIGKILL
	probeEnd        = 3 * time.Second
)

// watchGPUs starts the probe of the run's GPUs, and gives what ends it.
func (u *up) watchGPUs(ctx context.Context) func() {
	if len(u.plan.Devices) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // until the run's very end
	w := probe.Start(ctx, u.probing())
	u.mu.Lock()
	u.watch = w
	u.mu.Unlock()
	return func() {
		u.refresh(context.Background()) // what was known last stays
		u.mu.Lock()
		u.watch = nil
		u.mu.Unlock()
		cancel()
		u.closing("probe", func() error { return w.Close(probeEnd) })
	}
}

// barDevice has no worker started on a GPU any more. From any goroutine.
func (u *up) barDevice(uuid, reason string) {
	u.mu.Lock()
	if u.unfit == nil {
		u.unfit = map[string]string{}
	}
	u.unfit[uuid] = reason
	loop := u.loop
	u.mu.Unlock()
	if loop != nil { // else enter passes it on
		loop.Bar(uuid, reason)
	}
}

// probing is how this run's GPUs are watched.
func (u *up) probing() probe.Config {
	c := probe.Config{First: probeFirst, Deadline: probeDeadline, BackoffMin: probeBackoffMin, BackoffMax: probeBackoffMax, Lived: probeLived,
		Tell: func(level runner.Level, message string) {
			u.observe(runner.Event{At: time.Now(), Level: level, Name: "probe", Message: message})
		}, Unfit: u.barDevice}
	argv := []string{u.python.interpreter, "-m", "dflash_runner.probe", strconv.FormatFloat(probeEvery.Seconds(), 'g', -1, 64)}
	for _, d := range u.watched() {
		c.GPUs = append(c.GPUs, probe.GPU{UUID: d.UUID, Index: d.Index, Name: d.Name})
		argv = append(argv, d.UUID)
	}
	env := append(u.python.environment(1), seeing(placement.CPU)...) // it computes nothing
	c.Run = func(ctx context.Context, onLine func([]byte)) error {
		return worker.RunJob(ctx, worker.JobSpec{Argv: argv, Env: env, Dir: u.dir.path, LogPath: u.dir.join("logs", "probe.log"),
			Logger: u.log.Named("probe"), Grace: probeGrace}, onLine)
	}
	return c
}
