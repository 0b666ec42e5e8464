package drive

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner/core"
)

// judge asks the scheduler what is done about a death, if it is one that judges
// deaths. No answer is needed: the restart policy goes on by itself, and the core
// takes a verdict whenever it comes.
func (l *Loop) judge(a core.Judge) {
	judges, ok := l.guard.scheduler.(FailureScheduler)
	if !ok {
		return
	}
	l.ask("on_failure", func(ctx context.Context, _ Scheduler) (any, error) {
		return judges.OnFailure(ctx, a)
	}, func(answer any, err error) {
		v, _ := answer.(core.Verdict)
		v.Life = a.Life
		if err == nil {
			err = fitsDeath(a, v)
		}
		switch {
		case err == nil:
			l.handle(v)
		case !errors.Is(err, ErrDeclined):
			l.refuse("on_failure", err)
		}
	})
}

// fitsDeath says what is wrong with a verdict, or nothing.
func fitsDeath(a core.Judge, v core.Verdict) error {
	switch v.Decision {
	case core.VerdictRestart, core.VerdictStop:
		return nil
	case core.VerdictReplace:
		if !slices.Contains(a.Spares, v.Device) {
			return fmt.Errorf("%v: replace: want one of %v, got %.80q", a.Life, a.Spares, v.Device)
		}
		return nil
	}
	return fmt.Errorf("%v: want restart, replace or stop, got %.40q", a.Life, v.Decision)
}
