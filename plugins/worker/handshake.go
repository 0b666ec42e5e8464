package worker

import (
	"context"
	"strconv"
	"strings"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/dflash-runner/dflash-runner/runner"
)

// ProtocolVersion is the version of everything that is said with a worker,
// control plane and lane together. It rises when an old worker cannot be used.
const ProtocolVersion = 1

// PluginName is the one name that the host dispenses.
const PluginName = "worker"

// Handshake gives the cookie and version that a worker must show. The cookie
// is no secret: it makes a worker that a person starts by hand say so and end.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   "DFLASH_RUNNER_WORKER",
		MagicCookieValue: "39f0a4c2b1d64a0c",
	}
}

// stub makes go-plugin hand out the raw connection; the typed client is built
// from it by the caller.
type stub struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer serves nothing: hosts only dispense.
func (stub) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

// GRPCClient returns the *grpc.ClientConn itself.
func (stub) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// greeting is a worker's handshake line: the first of these on stdout counts.
type greeting struct {
	Core    int
	Version int
	Network string
	Address string
	Wire    string // "grpc"
}

// parseGreeting reads "1|1|unix|/path|grpc|": ok only for a line that has the
// form, whatever its values; anything else on stdout is noise.
func parseGreeting(line []byte) (g greeting, ok bool) {
	if len(line) > 4096 {
		return g, false
	}
	part := strings.Split(string(line), "|")
	if len(part) < 5 || len(part) > 7 {
		return g, false
	}
	core, err1 := strconv.ParseUint(part[0], 10, 16)
	version, err2 := strconv.ParseUint(part[1], 10, 16)
	if err1 != nil || err2 != nil || part[2] == "" || part[3] == "" {
		return g, false
	}
	if part[2] != "unix" && part[2] != "tcp" {
		return g, false
	}
	return greeting{int(core), int(version), part[2], part[3], strings.TrimSpace(part[4])}, true
}

// check refuses a greeting that this host cannot work with.
func (g greeting) check(socketDir string) error {
	switch {
	case g.Core != plugin.CoreProtocolVersion:
		return runner.Errorf(runner.Invalid, "check handshake: core protocol: want %d, got %d", plugin.CoreProtocolVersion, g.Core)
	case g.Version != ProtocolVersion:
		return runner.Errorf(runner.Invalid, "check handshake: worker protocol version: want %d, got %d", ProtocolVersion, g.Version).
			WithHint("the Python package and this binary are of different versions: remake the environment")
	case g.Wire != string(plugin.ProtocolGRPC):
		return runner.Errorf(runner.Invalid, "check handshake: wire protocol: want grpc, got %q", clean(g.Wire, 40))
	case g.Network != "unix":
		return runner.Errorf(runner.Invalid, "check handshake: network: want unix, got %s", g.Network)
	case !strings.HasPrefix(g.Address, socketDir+"/") || strings.Contains(g.Address, ".."):
		return runner.Errorf(runner.Invalid, "check handshake: address %q: want a socket in %s", clean(g.Address, 200), socketDir)
	}
	return nil
}
