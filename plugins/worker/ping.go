package worker

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// pingWrite bounds one write: a stopped worker fills its socket's buffer.
const pingWrite = time.Second

// pinger sends HTTP/2 PINGs on a connection of its own to a worker's gRPC
// socket. gRPC's C core answers them from native threads, so an answer needs
// no GIL; a worker that does not answer is stopped or gone.
type pinger struct {
	conn    net.Conn
	every   time.Duration
	started time.Time
	last    atomic.Int64 // nanoseconds after started of the newest answer, 0 for none
	replies chan func() error
	stop    chan struct{}
	once    sync.Once
	loops   sync.WaitGroup
}

// startPinger owns conn from here on. close ends both its goroutines.
func startPinger(conn net.Conn, every time.Duration) (*pinger, error) {
	p := &pinger{conn: conn, every: every, started: time.Now(),
		replies: make(chan func() error, 4), stop: make(chan struct{})}
	conn.SetWriteDeadline(time.Now().Add(pingWrite))
	framer := http2.NewFramer(conn, conn)
	framer.SetMaxReadFrameSize(1 << 14)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		conn.Close()
		return nil, err
	}
	if err := framer.WriteSettings(); err != nil {
		conn.Close()
		return nil, err
	}
	p.loops.Go(func() { p.read(framer) })
	p.loops.Go(func() { p.write(framer) })
	return p, nil
}

// read takes what the worker's core sends until the connection ends.
func (p *pinger) read(framer *http2.Framer) {
	defer p.end()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		var reply func() error
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				reply = framer.WriteSettingsAck
			}
		case *http2.PingFrame:
			if f.IsAck() {
				p.last.Store(max(int64(time.Since(p.started)), 1))
				continue
			}
			data := f.Data
			reply = func() error { return framer.WritePing(true, data) }
		}
		if reply == nil {
			continue
		}
		select {
		case p.replies <- reply:
		case <-p.stop:
			return
		}
	}
}

// write sends pings and replies: the only writer after the start.
func (p *pinger) write(framer *http2.Framer) {
	defer p.end()
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		var data [8]byte
		binary.BigEndian.PutUint64(data[:], n)
		send := func() error { return framer.WritePing(false, data) }
		if n > 1 { // the first goes out at once
			select {
			case <-p.stop:
				return
			case send = <-p.replies:
			case <-tick.C:
			}
		}
		p.conn.SetWriteDeadline(time.Now().Add(pingWrite))
		if send() != nil {
			return
		}
	}
}

// end closes the connection, which frees the other goroutine too.
func (p *pinger) end() {
	p.once.Do(func() {
		close(p.stop)
		p.conn.Close()
	})
}

// close ends the pinger and waits for its goroutines.
func (p *pinger) close() {
	p.end()
	p.loops.Wait()
}

// age gives the time since the newest answer, at the time now; since the start,
// with ok false, when there was none.
func (p *pinger) age(now time.Time) (d time.Duration, ok bool) {
	last := p.last.Load()
	return max(now.Sub(p.started)-time.Duration(last), 0), last != 0
}
