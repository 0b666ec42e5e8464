package worker

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestPingerWantsAnswers: what a peer sends by itself is no sign of life, and is
// answered as HTTP/2 wants it; only the answer to a ping counts.
func TestPingerWantsAnswers(t *testing.T) {
	host, peer := net.Pipe()
	framer := http2.NewFramer(peer, peer)
	started := make(chan *pinger, 1)
	go func() {
		p, err := startPinger(host, 10*time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(peer, preface); err != nil || string(preface) != http2.ClientPreface {
		t.Fatalf("preface %q: %v", preface, err)
	}
	settings, pings := false, 0
	next := func() http2.Frame {
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	next() // its settings
	p := <-started
	defer p.close()
	sent := make(chan error, 1)
	go func() { // net.Pipe has no buffer: write beside reading
		err := framer.WriteSettings()
		if err == nil {
			err = framer.WritePing(false, [8]byte{9})
		}
		sent <- err
	}()
	var answered, first [8]byte
	for !settings || pings < 3 || answered == [8]byte{} {
		switch f := next().(type) {
		case *http2.SettingsFrame:
			settings = f.IsAck()
		case *http2.PingFrame:
			if f.IsAck() {
				answered = f.Data
			} else {
				pings++
				first = f.Data
			}
		}
	}
	if err := <-sent; err != nil || answered != [8]byte{9} {
		t.Errorf("the peer's own ping: answered %v, %v", answered, err)
	}
	if _, ok := p.age(time.Now()); ok {
		t.Error("a sign of life without an answer")
	}
	go func() { sent <- framer.WritePing(true, first) }()
	for until := time.Now().Add(5 * time.Second); ; next() {
		if _, ok := p.age(time.Now()); ok {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the answer does not count")
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
