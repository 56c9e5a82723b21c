package vorbis

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestSpans lays packets out on small pages, so that most of them span some, and on large ones.
func TestSpans(t *testing.T) {
	for _, most := range []int{1, 2, 3, 7, 255} {
		file := load(t, "testdata/stereo44best.ogg")
		all := whole(t, file)
		file = paged(t, file, most)
		if got := whole(t, file); !slices.Equal(got[0], all[0]) || !slices.Equal(got[1], all[1]) {
			t.Fatalf("pages of %d segments: the samples are others", most)
		}
		for at := 0; at+300 < len(all[0]); at += 509 {
			part, err := decoded(file, at, 300)
			if err != nil || !slices.Equal(part[1], all[1][at:at+300]) {
				t.Fatalf("pages of %d segments: the part from %d is another (%v)", most, at, err)
			}
		}
	}
}

// paged returns a file whose pages of sound have at most most segments.
func paged(t *testing.T, file []byte, most int) []byte {
	t.Helper()
	s, b, err := open(file, false)
	if err != nil {
		t.Fatal(err)
	}
	out := slices.Clone(file[:b.audio])
	var segments, body []byte
	number, position, ended, before := uint32(2), int64(0), int64(-1), 0
	continued := byte(0)
	flush := func(last byte) {
		head := append([]byte("OggS\x00"), continued|last)
		head = binary.LittleEndian.AppendUint64(head, uint64(ended))
		head = append(head, file[14:18]...)
		head = binary.LittleEndian.AppendUint32(head, number)
		head = append(head, 0, 0, 0, 0, byte(len(segments)))
		page := slices.Concat(head, segments, body)
		seal(page)
		out = append(out, page...)
		continued = 0
		if segments[len(segments)-1] == 255 {
			continued = 1
		}
		segments, body, ended, number = nil, nil, -1, number+1
	}
	p := &b.packets
	for p.from(b.audio); ; {
		packet, err := p.next()
		if err != nil {
			t.Fatal(err)
		}
		if packet == nil {
			return out
		}
		half := s.half[s.mode(packet).long]
		if before > 0 {
			position += int64(before+half) / 2
		}
		before = half
		done := p.page.last && p.done()
		if done {
			position = p.page.position
		}
		for size := len(packet); ; size -= 255 {
			n := min(size, 255)
			segments, body = append(segments, byte(n)), append(body, packet[:n]...)
			if packet = packet[n:]; n < 255 {
				ended = position
			}
			if len(segments) == most || done && n < 255 {
				last := byte(0)
				if done && n < 255 {
					last = 4
				}
				flush(last)
			}
			if n < 255 {
				break
			}
		}
	}
}
