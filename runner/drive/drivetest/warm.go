package drivetest

import (
	"context"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// WarmUp takes a moment, and notes how many take theirs at once.
func (p *Process) WarmUp(ctx context.Context, progress func(string, uint32, uint32)) (runner.Certificate, error) {
	l := p.launcher
	p.warms()
	defer p.warmed()
	progress("first_pass", 0, 1)
	if l.WarmUp != nil {
		if err := l.WarmUp(ctx, p); err != nil {
			return runner.Certificate{}, err
		}
	}
	took := l.Warm
	if took == 0 {
		took = time.Second
	}
	select {
	case <-time.After(took):
		return runner.Certificate{Fingerprint: "model", Attention: "sdpa"}, nil
	case <-p.gone:
		return runner.Certificate{}, runner.Errorf(runner.Unavailable, "warm up: the process is gone")
	case <-ctx.Done():
		return runner.Certificate{}, context.Cause(ctx)
	}
}

// warms has it counted as one that warms up.
func (p *Process) warms() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped && !p.warming {
		p.warming = true
		p.launcher.gate(1)
	}
}

// warmed ends that for a living process, whose call has returned. A dead one
// holds its place until it is reaped, and no longer: who waited for the answer
// of a dead process may notice later.
func (p *Process) warmed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.warming && !p.ended {
		p.warming = false
		p.launcher.gate(-1)
	}
}

// reap ends it for a dead one; done is not closed yet.
func (p *Process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	if p.warming {
		p.warming = false
		p.launcher.gate(-1)
	}
}
