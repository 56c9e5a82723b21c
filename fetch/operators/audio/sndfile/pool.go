package sndfile

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// pool is the processes that decode: as many as calls at a time, of which some are kept.
// They end with this process, as their pipe does.
type pool struct {
	library  string
	patience time.Duration // for a file, besides what its length takes

	mu   sync.Mutex
	idle []*process
}

// slowest is the rate below which a decoder is taken to hang, in samples of all channels a second.
const slowest = 1_000_000

// version asks a process for the library's.
func (l *pool) version() (version, missing string) {
	p, missing, err := start(l.library)
	switch {
	case err != nil:
		return "", "cannot be used: " + err.Error()
	case missing != "":
		return "", missing
	}
	l.put(p)
	return p.detail, ""
}

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

// close ends the processes that are idle.
func (l *pool) close() {
	for p := l.take(); p != nil; p = l.take() {
		_ = p.end(nil)
	}
}

// decode is Decode. A process that ended may have been ended by others, even before it had the file: so a
// new one has the file once more.
func (l *pool) decode(file []byte, q request, out [][]float32) (int, time.Duration, error) {
	q.Bytes, q.Channels, q.Frames = int64(len(file)), int64(len(out)), int64(len(out[0]))
	took := l.patience + time.Duration(q.Frames*q.Channels)*time.Second/slowest
	for last := false; ; last = true {
		var p *process
		if !last {
			p = l.take()
		}
		if p == nil {
			var missing string
			var err error
			if p, missing, err = start(l.library); err != nil || p == nil {
				return 0, 0, fmt.Errorf("starting libsndfile's process: %s: %w", missing, err)
			}
		}
		a, err := p.ask(file, q, out, time.Now().Add(took))
		switch {
		case err == nil:
			l.put(p)
			spent := time.Duration(a.Nanos)
			return int(max(a.Frames, 0)), spent, said(a.Frames)
		case os.IsTimeout(err):
			_ = p.end(nil)
			return 0, 0, fmt.Errorf("%w: it took longer than %v", ErrDied, took)
		}
		if err = p.end(err); last {
			return 0, 0, fmt.Errorf("%w: %w", ErrDied, err)
		}
	}
}

// said is what a number of frames that is none means.
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
