package command

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// printable returns s with everything escaped, as in a Go string, that a
// terminal or a reader of lines would take for more than a character: line feeds,
// escape sequences, marks that turn the direction of writing, bytes that
// are no UTF-8. Names in data come from whoever made the data.
func printable(s string) string {
	if isPrintable(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		s = s[n:]
	}
	return b.String()
}

func isPrintable(s string) bool {
	for i, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// printableJSON returns a JSON text with the characters escaped that encoding/json
// leaves as they are and a terminal acts upon. It means the same.
func printableJSON(text []byte) []byte {
	var out []byte // text as far as start, once there is something to escape
	start := 0
	for i := 0; i < len(text); {
		if text[i] < 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if !strconv.IsPrint(r) {
			out = append(out, text[start:i]...)
			if r > 0xffff {
				r -= 0x10000
				out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				out = fmt.Appendf(out, `\u%04x`, r)
			}
			start = i + n
		}
		i += n
	}
	if out == nil {
		return text
	}
	return append(out, text[start:]...)
}
