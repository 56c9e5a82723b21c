package peer

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// frame reads the head of a frame of data, or another frame.
func (w *wire) frame() error {
	if w.ended != nil {
		return w.ended
	}
	if _, err := io.ReadFull(w.in, w.head[:]); err != nil {
		return err
	}
	w.last.Store(int64(time.Since(w.made)))
	length := int(w.head[0])<<16 | int(w.head[1])<<8 | int(w.head[2])
	if http2.FrameType(w.head[3]) == http2.FrameData {
		return w.data(length, http2.Flags(w.head[4]))
	}
	w.rest.Reset(w.head[:])
	f, err := w.frames.ReadFrame()
	if err != nil {
		return err
	}
	return w.take(f)
}

// data begins a frame of data.
func (w *wire) data(length int, flags http2.Flags) error {
	id := binary.BigEndian.Uint32(w.head[5:]) &^ (1 << 31)
	if id != wireStream || length > maxFrame {
		return errAnswers
	}
	if flags.Has(http2.FlagDataPadded) {
		n, err := w.in.ReadByte()
		if err != nil {
			return err
		}
		if w.padding = int(n); w.padding+1 > length {
			return errAnswers
		}
		w.used += uint32(w.padding) + 1
		length -= w.padding + 1
	}
	w.left = length
	if flags.Has(http2.FlagDataEndStream) {
		w.ended = errEnded
	}
	if length == 0 && w.padding > 0 {
		_, err := w.in.Discard(w.padding)
		w.padding = 0
		return err
	}
	return nil
}

// take does what a frame says.
func (w *wire) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if err := f.ForeachSetting(http2.Setting.Valid); err != nil {
			return fmt.Errorf("%w: %w", errAnswers, err)
		}
		w.settings(f)
		return w.write(w.out.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return w.write(func() error { return w.out.WritePing(true, f.Data) })
	case *http2.WindowUpdateFrame:
		return w.windows(f)
	case *http2.MetaHeadersFrame:
		return w.headers(f)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("%w: %s", errBroken, f.ErrCode)
	case *http2.GoAwayFrame:
		if f.LastStreamID < wireStream { // else it goes on until it ends
			return fmt.Errorf("%w: %s %q", errBroken, f.ErrCode, f.DebugData())
		}
	}
	return nil
}

func (w *wire) settings(f *http2.SettingsFrame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
		w.own += int64(n) - w.initial
		w.initial = int64(n)
	}
	if n, ok := f.Value(http2.SettingMaxFrameSize); ok {
		w.longest = int64(n)
	}
	w.grown.Broadcast()
}

func (w *wire) windows(f *http2.WindowUpdateFrame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	window := &w.own
	if f.StreamID == 0 {
		window = &w.all
	}
	if *window += int64(f.Increment); *window > mostWindow {
		return errAnswers
	}
	w.grown.Broadcast()
	return nil
}

// headers looks at headers, which may say that the call is over, and why.
func (w *wire) headers(f *http2.MetaHeadersFrame) error {
	if s := f.PseudoValue("status"); s != "" && s != "200" {
		return fmt.Errorf("%w: HTTP status %s", errBroken, s)
	}
	code, message := codes.OK, ""
	for _, h := range f.RegularFields() {
		switch h.Name {
		case "grpc-status":
			n, err := strconv.ParseUint(h.Value, 10, 8)
			if err != nil {
				return errAnswers
			}
			code = codes.Code(n)
		case "grpc-message":
			message = h.Value
			if plain, err := url.PathUnescape(message); err == nil {
				message = plain
			}
		}
	}
	if code != codes.OK {
		return status.Error(code, message)
	}
	if f.StreamEnded() {
		return errEnded
	}
	return nil
}
