package scheduler

import (
	"context"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// PluginName is the one name that the host dispenses.
const PluginName = "scheduler"

// MaxMessage bounds one message between host and plugin, in bytes.
const MaxMessage = 32 << 20

// window is how much of a question may be under way, in bytes: a pool of some
// hundred thousand samples comes without waiting for the plugin to say that it
// read the last piece.
const window = 4 << 20

// ProtocolVersion is the version of how host and plugin meet; what they say
// then has APIVersion.
const ProtocolVersion = 1

// Handshake gives the cookie and version that a plugin must show. The cookie is
// no secret: it makes a plugin that a person starts by hand say so and end.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   "DFLASH_RUNNER_SCHEDULER",
		MagicCookieValue: "5b1f0c6e9d274a83",
	}
}

// Serve answers the host until it says so; it is a plugin's whole main. It ends
// the process with 1 where the program was not started by a host.
func Serve(s Scheduler) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake(),
		Plugins:         plugin.PluginSet{PluginName: &served{scheduler: s}},
		Logger:          hclog.NewNullLogger(),
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.MaxRecvMsgSize(MaxMessage), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
				grpc.UnaryInterceptor(answer))...)
		},
	})
}

// served is what go-plugin is given on the plugin's side.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	scheduler Scheduler
}

// GRPCServer registers the service.
func (s *served) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	schedulerv1.RegisterSchedulerServer(g, &server{scheduler: s.scheduler})
	return nil
}

// GRPCClient is not for this side.
func (s *served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, Errorf(runner.Internal, "dispense: this is a plugin")
}
