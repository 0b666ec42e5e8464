// Package lane speaks proto/lane.md: orders and replies as msgpack frames, one
// frame a packet, over a worker's SOCK_SEQPACKET pair. It decides nothing: a
// peer that breaks a rule is an error of kind invalid, and the caller's to kill.
package lane

import (
	"bytes"
	"errors"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dflash-runner/dflash-runner/runner"
)

// MaxFrame is the largest frame in bytes.
const MaxFrame = 65536

// EncodeOrder gives the frame of o under sequence number seq, at least 1.
func EncodeOrder(seq uint64, o runner.Order) ([]byte, error) {
	if err := checkOrder(o); err != nil {
		return nil, runner.Errorf(runner.Internal, "encode %s: %w", runner.OrderType(o), err)
	}
	return encodeFrame(seq, runner.OrderType(o), orderFrame(head{runner.OrderType(o), runner.LaneVersion, seq}, o))
}

// EncodeReply gives the frame of r, which answers the order numbered seq.
func EncodeReply(seq uint64, r runner.Reply) ([]byte, error) {
	if err := checkReply(r); err != nil {
		return nil, runner.Errorf(runner.Internal, "encode %s: %w", runner.ReplyType(r), err)
	}
	return encodeFrame(seq, runner.ReplyType(r), replyFrame(head{runner.ReplyType(r), runner.LaneVersion, seq}, r))
}

// DecodeOrder reads an order. Whatever is not canonical, or breaks a range of
// the schema, is refused with kind invalid.
func DecodeOrder(b []byte) (uint64, runner.Order, error) {
	typ, err := open(b)
	if err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode order: %w", err)
	}
	f := newOrderFrame(typ)
	if f == nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode order: unknown type %q", typ)
	}
	if err := decodeFrame(b, f); err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode %s: %w", typ, err)
	}
	o := f.order()
	if err := checkOrder(o); err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode %s: %w", typ, err)
	}
	return f.start().Seq, o, nil
}

// DecodeReply reads a reply, as strictly as DecodeOrder.
func DecodeReply(b []byte) (uint64, runner.Reply, error) {
	typ, err := open(b)
	if err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode reply: %w", err)
	}
	f := newReplyFrame(typ)
	if f == nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode reply: unknown type %q", typ)
	}
	if err := decodeFrame(b, f); err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode %s: %w", typ, err)
	}
	r := f.reply()
	if err := checkReply(r); err != nil {
		return 0, nil, runner.Errorf(runner.Invalid, "decode %s: %w", typ, err)
	}
	return f.start().Seq, r, nil
}

// open scans a frame and peeks at its type, which picks the struct to decode
// into: nothing is ever decoded into an interface.
func open(b []byte) (string, error) {
	if err := Scan(b); err != nil {
		return "", err
	}
	key := []byte("\xa4type")
	if b[0]&0xf0 != 0x80 || !bytes.HasPrefix(b[1:], key) {
		return "", errors.New("want a map whose first key is type")
	}
	value := b[1+len(key):]
	if len(value) == 0 || value[0]&0xe0 != 0xa0 {
		return "", errors.New("type: want a short string")
	}
	return string(value[1 : 1+int(value[0]&0x1f)]), nil
}

func encodeFrame(seq uint64, typ string, f any) ([]byte, error) {
	if seq == 0 {
		return nil, runner.Errorf(runner.Internal, "encode %s: seq: want at least 1, got 0", typ)
	}
	b, err := encode(f)
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "encode %s: %w", typ, err)
	}
	if len(b) > MaxFrame {
		return nil, runner.Errorf(runner.Invalid, "encode %s: want at most %d bytes, got %d", typ, MaxFrame, len(b))
	}
	return b, nil
}

// encode writes f with integers in their shortest form, which is what both
// languages produce.
func encode(f any) ([]byte, error) {
	var b bytes.Buffer
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(&b)
	e.UseCompactInts(true)
	if err := e.Encode(f); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decodeFrame decodes a scanned frame into f and compares what f encodes to with what
// came. The library wraps integers, fills in missing keys with zero, lets the
// last of two equal keys win and takes strings for bytes; none of these
// survives the comparison.
func decodeFrame(b []byte, f frame) error {
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	d.Reset(bytes.NewReader(b))
	d.DisallowUnknownFields(true)
	if err := d.Decode(f); err != nil {
		return err
	}
	again, err := encode(f)
	if err != nil {
		return err
	}
	if at := differ(b, again); at >= 0 {
		return runner.Errorf(runner.Invalid, "not canonical: differs at byte %d of %d", at, len(b))
	}
	switch h := f.start(); {
	case h.V != runner.LaneVersion:
		return runner.Errorf(runner.Invalid, "v: want %d, got %d", runner.LaneVersion, h.V)
	case h.Seq == 0:
		return runner.Errorf(runner.Invalid, "seq: want at least 1, got 0")
	}
	return nil
}

// differ gives the first byte at which a and b differ, or -1.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
