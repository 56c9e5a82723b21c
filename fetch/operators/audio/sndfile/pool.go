package sndfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// pool is the decoding processes, one for each concurrent call. It keeps some of them idle.
// They end with this process, because its end closes their pipes. It is safe for concurrent
// use. mu is not held while a process works.
type pool struct {
	library  string
	binary   string              // binary to start; empty: this process's own
	patience time.Duration       // for a file, in addition to the time for its length
	pause    func(time.Duration) // before another attempt to start a process; nil: time.Sleep

	asking singleflight.Group // joins concurrent searches for the version
	found  atomic.Pointer[found]

	mu   sync.Mutex
	idle []*process
}

// found describes the library, or why there is none.
type found struct{ version, missing string }

// pauses are the delays between attempts to start a process: lack of memory or process ids
// may pass. They sum to 0.62 s.
var pauses = []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}

// slowest is the rate in samples of all channels a second below which a decoder counts as
// hanging.
const slowest = 1_000_000

// version gets the library's version from a process, once for all callers. A failure to
// start a process is not stored: the next caller tries again.
func (l *pool) version() (version, missing string, err error) {
	f := l.found.Load()
	if f == nil {
		_, err, _ = l.asking.Do("", func() (any, error) { return nil, l.find() })
		if f = l.found.Load(); f == nil {
			return "", "", err
		}
	}
	return f.version, f.missing, nil
}

// find starts a process, and stores the version of its library, or why it is missing. The
// process is kept for the first file.
func (l *pool) find() error {
	p, missing, err := l.start()
	if err != nil {
		return err
	}
	f := &found{missing: missing}
	if p != nil {
		f.version = p.detail
		l.put(p)
	}
	l.found.Store(f)
	return nil
}

// start starts a process, with several attempts. The error is an ErrNoProcess.
func (l *pool) start() (p *process, missing string, err error) {
	for n := 0; ; n++ {
		p, missing, err = start(cmp.Or(l.binary, "/proc/self/exe"), l.library)
		switch {
		case err == nil:
			return p, missing, nil
		case n == len(pauses) || errors.Is(err, os.ErrDeadlineExceeded): // it has waited long enough already
			return nil, "", fmt.Errorf("%w: %w", ErrNoProcess, err)
		case l.pause != nil:
			l.pause(pauses[n])
		default:
			time.Sleep(pauses[n])
		}
	}
}

// take returns an idle process, or nil. It is the one that was used last.
func (l *pool) take() *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) == 0 {
		return nil
	}
	p := l.idle[len(l.idle)-1]
	l.idle = l.idle[:len(l.idle)-1]
	return p
}

// put keeps a process for the next file, or ends it if there are as many idle ones as
// CPUs.
func (l *pool) put(p *process) {
	l.mu.Lock()
	room := len(l.idle) < runtime.GOMAXPROCS(0)
	if room {
		l.idle = append(l.idle, p)
	}
	l.mu.Unlock()
	if !room {
		_ = p.end(nil)
	}
}

// close ends the idle processes.
func (l *pool) close() {
	for p := l.take(); p != nil; p = l.take() {
		_ = p.end(nil)
	}
}

// decode is Decode. A process may have been killed for another reason, even before it had
// the file. So a new process gets the file once more. If that one ends too, the file is at
// fault: ErrDied.
func (l *pool) decode(ctx context.Context, file []byte, q request, out [][]float32) (int, time.Duration, error) {
	q.Bytes, q.Channels, q.Frames = int64(len(file)), int64(len(out)), int64(len(out[0]))
	took := l.patience + time.Duration(q.Frames*q.Channels)*time.Second/slowest
	for last := false; ; last = true {
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		var p *process
		if !last {
			p = l.take()
		}
		if p == nil {
			var missing string
			var err error
			if p, missing, err = l.start(); err != nil {
				return 0, 0, err
			}
			if p == nil { // it existed before
				return 0, 0, fmt.Errorf("%w: the library %s", ErrNoProcess, missing)
			}
			if f := l.found.Load(); f != nil && f.version != p.detail {
				now := p.detail
				_ = p.end(nil)
				return 0, 0, fmt.Errorf("%w: the library is %s, and was %s before; what one has decoded is not what "+
					"the other does: restart to go on with this one", ErrNoProcess, now, f.version)
			}
		}
		a, err := p.ask(ctx, file, q, out, time.Now().Add(took))
		switch {
		case err == nil:
			l.put(p)
			spent := time.Duration(a.Nanos)
			return int(max(a.Frames, 0)), spent, said(a.Frames)
		case ctx.Err() != nil:
			_ = p.end(nil)
			return 0, 0, context.Cause(ctx)
		case os.IsTimeout(err):
			_ = p.end(nil)
			return 0, 0, fmt.Errorf("%w: it took longer than %v", ErrDied, took)
		}
		if err = p.end(err); last {
			return 0, 0, fmt.Errorf("%w: %w", ErrDied, err)
		}
	}
}

// said converts a negative number of frames to its error.
func said(frames int64) error {
	switch {
	case frames >= 0:
		return nil
	case frames == notOpened:
		return ErrNotOpened
	case frames == other:
		return ErrOther
	case frames == noSeek:
		return ErrNoSeek
	default:
		return fmt.Errorf("%w: it says %d", ErrDied, frames)
	}
}
