package host

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
)

// talker is a plugin below the SDK: it has streams, and breaks their rules as its
// name says. Calls it answers only where a test waits for one.
type talker struct {
	schedulerv1.UnimplementedSchedulerServer
	which   string
	once    sync.Once
	streams atomic.Int32
	other   chan struct{} // closed by the question that a slow one waits for
}

// becomeTalker serves it. It never returns.
func becomeTalker(which string) {
	t := &talker{which: which, other: make(chan struct{})}
	plugin.Serve(&plugin.ServeConfig{HandshakeConfig: scheduler.Handshake(), Plugins: plugin.PluginSet{scheduler.PluginName: talks{t: t}},
		Logger: hclog.NewNullLogger(), GRPCServer: plugin.DefaultGRPCServer})
	os.Exit(0)
}

// talks registers a talker.
type talks struct {
	plugin.NetRPCUnsupportedPlugin
	t *talker
}

func (s talks) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	schedulerv1.RegisterSchedulerServer(g, s.t)
	return nil
}

func (talks) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("a plugin")
}

func (*talker) Info(context.Context, *schedulerv1.InfoRequest) (*schedulerv1.InfoReply, error) {
	return &schedulerv1.InfoReply{Name: "good", Version: "1", ApiVersions: []uint32{1}, Ask: true, Capabilities: []schedulerv1.Capability{
		schedulerv1.Capability_CAPABILITY_ARRANGE, schedulerv1.Capability_CAPABILITY_ASSIGN}}, nil
}

func (*talker) ConfigSchema(context.Context, *schedulerv1.ConfigSchemaRequest) (*schedulerv1.ConfigSchemaReply, error) {
	return &schedulerv1.ConfigSchemaReply{}, nil
}

func (*talker) Configure(context.Context, *schedulerv1.ConfigureRequest) (*schedulerv1.ConfigureReply, error) {
	return &schedulerv1.ConfigureReply{}, nil
}

// Arrange is a call: asked where the stream is taken.
func (t *talker) Arrange(_ context.Context, q *schedulerv1.ArrangeRequest) (*schedulerv1.ArrangeReply, error) {
	if t.which != "taken" { // how many streams were opened: no answer to a question
		return &schedulerv1.ArrangeReply{Samples: []uint32{uint32(t.streams.Load())}}, nil
	}
	t.once.Do(func() { close(t.other) })
	return &schedulerv1.ArrangeReply{Samples: q.GetPool().GetSample()[:q.GetCount()]}, nil
}

// Ask answers in the pool's order, and breaks a rule.
func (t *talker) Ask(stream schedulerv1.Scheduler_AskServer) error {
	t.streams.Add(1)
	fmt.Fprintln(os.Stderr, "opened")
	if t.which == "unasked" {
		if err := stream.Send(&schedulerv1.Answer{Number: 1}); err != nil {
			return err
		}
	}
	for {
		q, err := stream.Recv()
		if err != nil {
			return err
		}
		a := &schedulerv1.Answer{Number: q.GetNumber()}
		if x := q.GetAssign(); x != nil {
			a.Answer = &schedulerv1.Answer_Assign{Assign: &schedulerv1.AssignReply{Target: x.GetFree()[0]}}
			t.once.Do(func() { close(t.other) })
		} else {
			x := q.GetArrange()
			a.Answer = &schedulerv1.Answer_Arrange{Arrange: &schedulerv1.ArrangeReply{Samples: firstOf(x)}}
			if t.which == "ends" {
				return nil
			}
			if err := t.spoil(stream, q.GetDeadlineMs(), a); err != nil {
				return err
			}
		}
		if err := stream.Send(a); err != nil {
			return err
		}
	}
}

// firstOf gives the first samples of a question's columns, which are numbers of a byte.
func firstOf(q *schedulerv1.ArrangeRequest) (out []uint32) {
	for _, s := range q.GetColumns().GetSample()[:q.GetCount()] {
		out = append(out, uint32(s))
	}
	return out
}

// spoil does to an arrangement what the plugin's name says.
func (t *talker) spoil(stream schedulerv1.Scheduler_AskServer, ms uint32, a *schedulerv1.Answer) error {
	switch t.which {
	case "another number":
		a.Number++
	case "twice":
		return stream.Send(proto.CloneOf(a))
	case "another kind":
		a.Answer = &schedulerv1.Answer_Assign{Assign: &schedulerv1.AssignReply{}}
	case "nothing":
		a.Answer = nil
	case "torn":
		a.GetArrange().Samples, a.GetArrange().Packed = nil, []byte{10, 0, 0, 0, 11, 0, 0}
	case "both forms":
		a.GetArrange().Packed = []byte{10, 0, 0, 0}
	case "refuses":
		a.Answer = &schedulerv1.Answer_Refusal{Refusal: &schedulerv1.Refusal{Kind: "exhausted", Message: "no samples", Hint: "wait"}}
	case "fails":
		return status.Error(codes.DataLoss, "a broken stream")
	case "slow", "taken":
		<-t.other
	case "hangs":
		fmt.Fprintln(os.Stderr, "it hangs")
		select {}
	case "late":
		if ms < 1000 { // else it is in time
			<-stream.Context().Done() // then it answers all the same
		}
	}
	return nil
}
