package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// checkEvery is the least time between two checks of a file. A check is a stat for each
// path, and requests come often.
const checkEvery = 10 * time.Second

// Noted records whether files could be read, and decides for how long an old value holds.
// auth.Source implements it.
type Noted interface {
	// Note reports the outcome of a check: nil if the files could be read.
	Note(ctx context.Context, err error)
	// Closed returns why the last value is not valid any longer; nil while it is.
	Closed() error
}

// file is a value that is parsed from files, again whenever they have changed. It is safe
// for concurrent use. It polls: notifications of file systems miss what Kubernetes does
// with mounted secrets, which are symbolic links that change.
type file[T any] struct {
	paths []string
	// parse reads the files. It is called under mu.
	parse func() (T, error)
	noted Noted // may be nil

	// All below are guarded by mu.
	mu      sync.Mutex
	value   T
	stamps  []stamp   // of the files that value was read from; nil before the first success
	checked time.Time // the last check, whatever its outcome
}

// stamp identifies the content of a path without reading it. The inode is part of it: a
// replacement may have the same time and size.
type stamp struct{ info os.FileInfo }

// get returns the value of the files. If they cannot be read or parsed later on, get
// returns the last value for a grace time, because they may be in the middle of a
// replacement.
func (f *file[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stamps != nil && time.Since(f.checked) < checkEvery {
		return f.value, f.closed()
	}
	f.checked = time.Now()
	stamps, err := f.stamp()
	if err == nil && !same(stamps, f.stamps) {
		var v T
		if v, err = f.parse(); err == nil {
			f.value, f.stamps = v, stamps
		}
	}
	if f.noted != nil {
		f.noted.Note(context.Background(), err)
	}
	if f.stamps != nil {
		err = f.closed()
	}
	return f.value, err
}

// closed returns why the last value is not valid any longer; nil while it is.
func (f *file[T]) closed() error {
	if f.noted == nil {
		return nil
	}
	return f.noted.Closed()
}

func (f *file[T]) stamp() ([]stamp, error) {
	stamps := make([]stamp, len(f.paths))
	for i, p := range f.paths {
		st, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		stamps[i] = stamp{st}
	}
	return stamps, nil
}

func same(a, b []stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		now, before := a[i].info, b[i].info
		if !os.SameFile(now, before) || !now.ModTime().Equal(before.ModTime()) || now.Size() != before.Size() {
			return false
		}
	}
	return true
}

// Certificate is one that is read from files, and again when they are replaced.
type Certificate struct{ file file[*tls.Certificate] }

// LoadCertificate reads a certificate with its key.
func LoadCertificate(cert, key string, noted Noted) (*Certificate, error) {
	c := &Certificate{file[*tls.Certificate]{paths: []string{cert, key}, noted: noted, parse: func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}}}
	_, err := c.file.get()
	return c, err
}

// TLS returns a configuration that presents it.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.file.get() },
	}
}

// NotAfter is when it ends to be valid.
func (c *Certificate) NotAfter() time.Time {
	pair, err := c.file.get()
	if err != nil || pair.Leaf == nil {
		return time.Time{}
	}
	return pair.Leaf.NotAfter
}

// leastToken is how long a token has to be: one that can be guessed is none.
const leastToken = 16

// LoadToken returns a function for Options.Token that reads it from a file, again
// when that is replaced.
func LoadToken(path string, noted Noted) (func() ([]byte, error), error) {
	f := &file[[]byte]{paths: []string{path}, noted: noted, parse: func() ([]byte, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return CheckToken(bytes.TrimSpace(text))
	}}
	if _, err := f.get(); err != nil {
		return nil, fmt.Errorf("the token of the admin listener, %s: %w", path, err)
	}
	return f.get, nil
}

// CheckToken returns the token, or an error that does not show it.
func CheckToken(token []byte) ([]byte, error) {
	if len(token) < leastToken {
		return nil, fmt.Errorf("got %d characters, want %d or more", len(token), leastToken)
	}
	return token, nil
}
