package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// elder is the plugin of the transcript: bytes in, bytes out, without any type
// or constant of today's SDK.
type elder struct {
	said     map[string][]byte
	versions string // that it says it speaks; empty: as it was
}

// becomeElder serves it. It never returns.
func becomeElder(args []string) {
	said, err := parseTranscript(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	e := elder{said: said}
	if len(args) > 1 {
		e.versions = args[1]
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "DFLASH_RUNNER_SCHEDULER", MagicCookieValue: "5b1f0c6e9d274a83"},
		Plugins:         plugin.PluginSet{"scheduler": stub{}},
		Logger:          hclog.NewNullLogger(),
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(e.handle))...)
		},
	})
	os.Exit(0)
}

// frame is a message as bytes.
type frame []byte

// rawCodec leaves frames as they are; go-plugin's own services have types.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	if f, ok := v.(*frame); ok {
		return *f, nil
	}
	return proto.Marshal(v.(proto.Message))
}

func (rawCodec) Unmarshal(b []byte, v any) error {
	if f, ok := v.(*frame); ok {
		*f = bytes.Clone(b)
		return nil
	}
	return proto.Unmarshal(b, v.(proto.Message))
}

func (rawCodec) Name() string { return "proto" }

// handle answers any method with the transcript's bytes, if the question holds
// what it held then.
func (e elder) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	method := path.Base(full)
	if path.Dir(full) != "/dflash_runner.scheduler.v1.Scheduler" || e.said[method+" reply"] == nil && method != "Configure" && method != "Observe" {
		return fmt.Errorf("unknown method %s", full)
	}
	var ask frame
	if err := stream.RecvMsg(&ask); err != nil {
		return err
	}
	err := covers(e.said[method+" ask"], ask)
	if method == "Observe" {
		if err == nil {
			fmt.Fprintln(os.Stderr, "observed well")
		} else {
			fmt.Fprintln(os.Stderr, "observed", err)
		}
		for errors.Is(stream.RecvMsg(&ask), nil) {
		}
		return stream.SendMsg(&frame{})
	}
	if e.versions != "" && (method == "Info" || method == "Configure") {
		err = nil // versions differ from the transcript's: that is what is tested
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	reply := frame(e.said[method+" reply"])
	if method == "Info" && e.versions != "" {
		reply = e.speaks(reply)
	}
	return stream.SendMsg(&reply)
}

// speaks puts other versions into an Info reply (field 3, packed).
func (e elder) speaks(reply []byte) (out frame) {
	for len(reply) > 0 {
		number, _, n := protowire.ConsumeField(reply)
		if number != 3 {
			out = append(out, reply[:n]...)
		}
		reply = reply[n:]
	}
	var packed []byte
	for _, v := range strings.Split(e.versions, ",") {
		if n, err := strconv.ParseUint(v, 10, 32); err == nil {
			packed = protowire.AppendVarint(packed, n)
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(out, 3, protowire.BytesType), packed)
}

// covers says what of an old message a new one does not hold: every field with
// its value, in its order. The new one may have more fields, at any depth.
func covers(old, new []byte) error {
	was, err := fieldsOf(old)
	if err != nil {
		return fmt.Errorf("the transcript: %w", err)
	}
	is, err := fieldsOf(new)
	if err != nil {
		return err
	}
	for number, values := range was {
		if len(is[number]) != len(values) {
			return fmt.Errorf("field %d: want %d values, got %d", number, len(values), len(is[number]))
		}
		for i, v := range values {
			got := is[number][i]
			if bytes.Equal(v, got) {
				continue
			}
			_, err := fieldsOf(payload(v))
			if _, also := fieldsOf(payload(got)); err != nil || also != nil || v[0]&7 != byte(protowire.BytesType) {
				return fmt.Errorf("field %d: want %x, got %x", number, v, got)
			}
			if err := covers(payload(v), payload(got)); err != nil {
				return fmt.Errorf("field %d: %w", number, err)
			}
		}
	}
	return nil
}

// fieldsOf splits a message into its fields, tags included.
func fieldsOf(b []byte) (map[protowire.Number][][]byte, error) {
	all := map[protowire.Number][][]byte{}
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil, io.ErrUnexpectedEOF
		}
		all[number] = append(all[number], b[:n])
		b = b[n:]
	}
	return all, nil
}

// payload is a field without its tag and length; nil where it has none.
func payload(field []byte) []byte {
	_, kind, n := protowire.ConsumeTag(field)
	if kind != protowire.BytesType {
		return nil
	}
	v, _ := protowire.ConsumeBytes(field[n:])
	return v
}

// TestCovers: more is taken, less and other is not.
func TestCovers(t *testing.T) {
	inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7)
	more := protowire.AppendVarint(protowire.AppendTag(inner[:len(inner):len(inner)], 9, protowire.VarintType), 1)
	other := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 8)
	in := func(b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), b)
	}
	for _, c := range []struct {
		old, new []byte
		ok       bool
	}{
		{inner, inner, true}, {inner, more, true}, {more, inner, false}, {inner, other, false}, {inner, nil, false}, {nil, inner, true},
		{in(inner), in(more), true}, {in(more), in(inner), false}, {in(inner), in(other), false}, {append(in(inner), in(inner)...), in(inner), false},
		{in([]byte("healthy")), in([]byte("critical")), false},
	} {
		if err := covers(c.old, c.new); (err == nil) != c.ok {
			t.Errorf("%x in %x: got %v", c.old, c.new, err)
		}
	}
}
