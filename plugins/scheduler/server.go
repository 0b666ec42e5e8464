package scheduler

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// server answers the host with a Scheduler's words. Its errors are as the plugin
// gave them: answer and Ask turn them into what travels.
type server struct {
	schedulerv1.UnimplementedSchedulerServer
	scheduler Scheduler
}

var capabilities = map[Capability]schedulerv1.Capability{Place: schedulerv1.Capability_CAPABILITY_PLACE, Arrange: schedulerv1.Capability_CAPABILITY_ARRANGE,
	Assign: schedulerv1.Capability_CAPABILITY_ASSIGN, OnFailure: schedulerv1.Capability_CAPABILITY_ON_FAILURE, Observe: schedulerv1.Capability_CAPABILITY_OBSERVE}

// able gives what a scheduler implements, in a fixed order.
func able(s Scheduler) (all []Capability) {
	if _, ok := s.(Placer); ok {
		all = append(all, Place)
	}
	if _, ok := s.(Arranger); ok {
		all = append(all, Arrange)
	}
	if _, ok := s.(Assigner); ok {
		all = append(all, Assign)
	}
	if _, ok := s.(FailureJudge); ok {
		all = append(all, OnFailure)
	}
	if _, ok := s.(Observer); ok {
		all = append(all, Observe)
	}
	return all
}

// lacks is the answer to a question that the plugin did not offer to answer.
func lacks(c Capability) error {
	return Errorf(runner.NotFound, "%s: this plugin does not do that", c)
}

// Info implements schedulerv1.SchedulerServer.
func (s *server) Info(context.Context, *schedulerv1.InfoRequest) (*schedulerv1.InfoReply, error) {
	i := s.scheduler.Info()
	out := &schedulerv1.InfoReply{Name: i.Name, Version: i.Version, ApiVersions: []uint32{APIVersion}, Ask: true, Vitals: true}
	for _, c := range able(s.scheduler) {
		out.Capabilities = append(out.Capabilities, capabilities[c])
	}
	return out, nil
}

// ConfigSchema implements schedulerv1.SchedulerServer.
func (s *server) ConfigSchema(_ context.Context, _ *schedulerv1.ConfigSchemaRequest) (*schedulerv1.ConfigSchemaReply, error) {
	out := &schedulerv1.ConfigSchemaReply{}
	for _, f := range s.scheduler.Schema() {
		p, err := f.proto()
		if err != nil {
			return nil, err
		}
		out.Fields = append(out.Fields, p)
	}
	return out, nil
}

// Configure implements schedulerv1.SchedulerServer.
func (s *server) Configure(ctx context.Context, q *schedulerv1.ConfigureRequest) (*schedulerv1.ConfigureReply, error) {
	if v := q.GetApiVersion(); v != APIVersion {
		return nil, Errorf(runner.Invalid, "configure: want API version %d, got %d", APIVersion, v)
	}
	err := s.scheduler.Configure(ctx, Config{Seed: q.GetSeed(), raw: q.GetConfig()})
	return &schedulerv1.ConfigureReply{}, err
}

// Vitals implements schedulerv1.SchedulerServer.
func (s *server) Vitals(context.Context, *schedulerv1.VitalsRequest) (*schedulerv1.VitalsReply, error) {
	return &schedulerv1.VitalsReply{Goroutines: uint32(runtime.NumGoroutine())}, nil
}

// Arrange implements schedulerv1.SchedulerServer.
func (s *server) Arrange(ctx context.Context, q *schedulerv1.ArrangeRequest) (*schedulerv1.ArrangeReply, error) {
	a, ok := s.scheduler.(Arranger)
	if !ok {
		return nil, lacks(Arrange)
	}
	in, err := arrangeRequest(q)
	if err != nil {
		return nil, err
	}
	samples, err := a.Arrange(ctx, in)
	if err != nil {
		return nil, err
	}
	return arrangeReply(q, samples), nil
}

// Assign implements schedulerv1.SchedulerServer.
func (s *server) Assign(ctx context.Context, q *schedulerv1.AssignRequest) (*schedulerv1.AssignReply, error) {
	a, ok := s.scheduler.(Assigner)
	if !ok {
		return nil, lacks(Assign)
	}
	in := AssignRequest{Row: runner.Row(q.GetRow()), Bucket: q.GetBucket(), Tokens: q.GetTokens()}
	for _, w := range q.GetFree() {
		in.Free = append(in.Free, workerOf(w))
	}
	target, err := a.Assign(ctx, in)
	return &schedulerv1.AssignReply{Target: protoWorker(target)}, err
}

// Place implements schedulerv1.SchedulerServer.
func (s *server) Place(ctx context.Context, q *schedulerv1.PlaceRequest) (*schedulerv1.PlaceReply, error) {
	p, ok := s.scheduler.(Placer)
	if !ok {
		return nil, lacks(Place)
	}
	in := PlaceRequest{Devices: devicesOf(q.GetDevices()), Colocate: q.GetColocate()}
	for _, n := range q.GetNeeds() {
		in.Needs = append(in.Needs, Need{Worker: workerOf(n.GetWorker()), MemoryBytes: n.GetMemoryBytes(), RowMS: n.RowMs})
	}
	placements, err := p.Place(ctx, in)
	out := &schedulerv1.PlaceReply{}
	for _, x := range placements {
		out.Placements = append(out.Placements, &schedulerv1.Placement{Worker: protoWorker(x.Worker), Device: x.Device})
	}
	return out, err
}

var decisions = map[Decision]schedulerv1.Decision{Restart: schedulerv1.Decision_DECISION_RESTART, Replace: schedulerv1.Decision_DECISION_REPLACE,
	Stop: schedulerv1.Decision_DECISION_STOP}

// OnFailure implements schedulerv1.SchedulerServer.
func (s *server) OnFailure(ctx context.Context, q *schedulerv1.OnFailureRequest) (*schedulerv1.OnFailureReply, error) {
	j, ok := s.scheduler.(FailureJudge)
	if !ok {
		return nil, lacks(OnFailure)
	}
	v, err := j.OnFailure(ctx, FailureRequest{Worker: workerOf(q.GetWorker()), Device: q.GetDevice(), Cause: runner.Cause(q.GetCause()),
		Message: q.GetMessage(), Deaths: q.GetDeaths(), Budget: q.GetBudget(), Devices: devicesOf(q.GetDevices())})
	return &schedulerv1.OnFailureReply{Decision: decisions[v.Decision], Device: v.Device, Reason: v.Reason}, err
}

// Observe implements schedulerv1.SchedulerServer.
func (s *server) Observe(stream schedulerv1.Scheduler_ObserveServer) error {
	o, ok := s.scheduler.(Observer)
	if !ok {
		return tell(stream.Context(), lacks(Observe))
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&schedulerv1.ObserveReply{})
		}
		if err != nil {
			return err
		}
		out := Event{Number: e.GetNumber(), At: time.UnixMilli(e.GetAtUnixMs()), Level: runner.Level(e.GetLevel()), Name: e.GetName(),
			Message: e.GetMessage(), Step: runner.Step(e.GetStep()), Row: runner.Row(e.GetRow())}
		if w := e.GetWorker(); w != nil {
			id := workerOf(w)
			out.Worker = &id
		}
		o.Observe(out)
	}
}
