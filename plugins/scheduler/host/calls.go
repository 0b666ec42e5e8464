package host

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// question asks a process that can answer, judges, and counts.
func question[A any](ctx context.Context, p *Plugin, c scheduler.Capability, ask func(context.Context, *process, grpc.CallOption) (A, error), judge func(A) error) (answer A, err error) {
	running, err := p.current(c)
	if err != nil {
		return answer, err
	}
	err = running.call(ctx, p.o, string(c), func(ctx context.Context, opt grpc.CallOption) (err error) {
		answer, err = ask(ctx, running, opt)
		return err
	})
	if err == nil {
		if wrong := judge(answer); wrong != nil {
			err = runner.Errorf(runner.Invalid, "%s: %w", c, wrong)
		}
	}
	return answer, p.answered(running, err)
}

// Arrange asks for the next samples of an epoch.
func (p *Plugin) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	return question(ctx, p, scheduler.Arrange, func(ctx context.Context, r *process, opt grpc.CallOption) ([]runner.Sample, error) {
		reply, err := r.arrange(ctx, q, opt)
		if err != nil {
			return nil, err
		}
		return samplesOf(reply)
	}, func(out []runner.Sample) error { return JudgeArrange(q, out) })
}

// Assign asks which free target makes a row.
func (p *Plugin) Assign(ctx context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	return question(ctx, p, scheduler.Assign, func(ctx context.Context, r *process, opt grpc.CallOption) (runner.Worker, error) {
		m := &schedulerv1.AssignRequest{Row: uint64(q.Row), Bucket: q.Bucket, Tokens: q.Tokens}
		for _, w := range q.Free {
			m.Free = append(m.Free, workerMessage(w))
		}
		reply, err := r.assign(ctx, m, opt)
		return workerOf(reply.GetTarget()), err
	}, func(w runner.Worker) error { return JudgeAssign(q, w) })
}

// Place asks where workers run.
func (p *Plugin) Place(ctx context.Context, q scheduler.PlaceRequest) ([]scheduler.Placement, error) {
	return question(ctx, p, scheduler.Place, func(ctx context.Context, r *process, opt grpc.CallOption) (out []scheduler.Placement, err error) {
		m := &schedulerv1.PlaceRequest{Devices: deviceMessages(q.Devices), Colocate: q.Colocate}
		for _, n := range q.Needs {
			m.Needs = append(m.Needs, &schedulerv1.Need{Worker: workerMessage(n.Worker), MemoryBytes: n.MemoryBytes, RowMs: n.RowMS})
		}
		reply, err := r.ask.Place(ctx, m, opt)
		for _, x := range reply.GetPlacements() {
			out = append(out, scheduler.Placement{Worker: workerOf(x.GetWorker()), Device: x.GetDevice()})
		}
		return out, err
	}, func(out []scheduler.Placement) error { return JudgePlace(q, out) })
}

var decisions = map[schedulerv1.Decision]scheduler.Decision{schedulerv1.Decision_DECISION_RESTART: scheduler.Restart,
	schedulerv1.Decision_DECISION_REPLACE: scheduler.Replace, schedulerv1.Decision_DECISION_STOP: scheduler.Stop}

// OnFailure asks what is done about a death.
func (p *Plugin) OnFailure(ctx context.Context, q scheduler.FailureRequest) (scheduler.Verdict, error) {
	return question(ctx, p, scheduler.OnFailure, func(ctx context.Context, r *process, opt grpc.CallOption) (scheduler.Verdict, error) {
		reply, err := r.ask.OnFailure(ctx, &schedulerv1.OnFailureRequest{Worker: workerMessage(q.Worker), Device: q.Device, Cause: string(q.Cause),
			Message: strings.ToValidUTF8(q.Message, "?"), Deaths: q.Deaths, Budget: q.Budget, Devices: deviceMessages(q.Devices)}, opt)
		return scheduler.Verdict{Decision: decisions[reply.GetDecision()], Device: reply.GetDevice(), Reason: reply.GetReason()}, err
	}, func(v scheduler.Verdict) error { return JudgeVerdict(q, v) })
}
