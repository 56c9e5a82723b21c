package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"bowstring/schema"
)

// asUTF8 returns the text of a file in UTF-8, without its byte order mark. A mark of UTF-16 is believed: what is no
// text there becomes what is no text in UTF-8.
func asUTF8(in *bufio.Reader) (*bufio.Reader, error) {
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	little := bytes.HasPrefix(head, []byte{0xff, 0xfe})
	switch {
	case bytes.HasPrefix(head, []byte{0xef, 0xbb, 0xbf}):
		_, err = in.Discard(3)
		return in, err
	case bytes.Equal(head, []byte{0xff, 0xfe, 0, 0}), bytes.Equal(head, []byte{0, 0, 0xfe, 0xff}):
		return nil, fmt.Errorf("%w: it is UTF-32; want UTF-8 or UTF-16", schema.ErrInvalid)
	case little, bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		_, err = in.Discard(2)
		return bufio.NewReaderSize(&fromUTF16{in: in, little: little}, 1<<16), err
	case len(head) > 1 && (head[0] == 0 || head[1] == 0):
		return nil, fmt.Errorf("%w: it is no UTF-8; UTF-16 begins with a byte order mark", schema.ErrInvalid)
	}
	return in, nil
}

// fromUTF16 reads UTF-16 as UTF-8.
type fromUTF16 struct {
	in     *bufio.Reader
	little bool
	out    []byte // not read yet
	err    error  // behind out
}

func (r *fromUTF16) Read(b []byte) (int, error) {
	if len(r.out) == 0 && r.err == nil {
		r.out = r.out[:0]
		for len(r.out) < 1<<12 && r.err == nil {
			r.one()
		}
	}
	if len(r.out) == 0 {
		return 0, r.err
	}
	n := copy(b, r.out)
	r.out = r.out[n:]
	return n, nil
}

// one reads a character.
func (r *fromUTF16) one() {
	const no = 0xff // no UTF-8
	c, ok := r.unit()
	switch {
	case !ok:
		return
	case !utf16.IsSurrogate(c):
		r.out = utf8.AppendRune(r.out, c)
		return
	}
	// The second half is looked at only: it may be a character of its own.
	next, err := r.in.Peek(2)
	if err == nil {
		if pair := utf16.DecodeRune(c, r.rune(next)); pair != utf8.RuneError {
			_, _ = r.in.Discard(2) // which were there
			r.out = utf8.AppendRune(r.out, pair)
			return
		}
	}
	r.out = append(r.out, no)
}

// unit reads two bytes; a last one alone is no text.
func (r *fromUTF16) unit() (rune, bool) {
	var b [2]byte
	n, err := io.ReadFull(r.in, b[:])
	if err != nil {
		if n == 1 {
			r.out = append(r.out, 0xff)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		r.err = err
		return 0, false
	}
	return r.rune(b[:]), true
}

func (r *fromUTF16) rune(b []byte) rune {
	if r.little {
		return rune(b[0]) | rune(b[1])<<8
	}
	return rune(b[0])<<8 | rune(b[1])
}
