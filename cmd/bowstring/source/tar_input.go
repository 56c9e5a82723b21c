package source

import (
	"bytes"
	"io"
)

// tarBlock is the size of the blocks that a tar consists of.
const tarBlock = 512

// tarInput is what a tar is read from. It remembers what the end of a tar is told by.
type tarInput struct {
	r      io.Reader
	again  []byte         // is read once more, before r
	n      int64          // bytes read, or passed over
	zeros  int64          // that what was read ends with
	before int64          // zeros before the last block, if the last read was of one
	last   [tarBlock]byte // that block
	err    error          // of the last read
}

func (t *tarInput) Read(p []byte) (int, error) {
	if len(t.again) > 0 {
		n := copy(p, t.again)
		t.again = t.again[n:]
		return n, nil
	}
	n, err := t.r.Read(p)
	t.n += int64(n)
	t.err = err
	t.before = 0
	if n == tarBlock {
		t.before = t.zeros
		copy(t.last[:], p)
	}
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		t.zeros = int64(n - rest)
	} else {
		t.zeros += int64(n)
	}
	return n, err
}

// seekableTar passes over what tar.Reader does not ask for.
type seekableTar struct {
	*tarInput
	seek io.Seeker
}

func (t *seekableTar) Seek(offset int64, whence int) (int64, error) {
	if len(t.again) > 0 { // tar.Reader has read no header yet, and passes over nothing
		return 0, io.ErrNoProgress
	}
	n, err := t.seek.Seek(offset, whence)
	if err == nil && (whence != io.SeekCurrent || offset != 0) {
		t.n, t.zeros, t.before = n, 0, 0
	}
	return n, err
}
