package flight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/schema"
)

func TestCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want codes.Code
	}{
		{schema.ErrInvalid, codes.InvalidArgument},
		{&schema.FieldError{Field: "f", Want: "x"}, codes.InvalidArgument},
		{schema.ErrNotFound, codes.NotFound},
		{schema.ErrExists, codes.AlreadyExists},
		{schema.ErrLimit, codes.ResourceExhausted},
		{schema.ErrConflict, codes.Unavailable},
		{schema.ErrUnavailable, codes.Unavailable},
		{schema.ErrDataLoss, codes.DataLoss},
		{schema.ErrNotSupported, codes.Unimplemented},
		{errCancelled, codes.Canceled},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{errors.New("anything else"), codes.Internal},
		{status.Error(codes.Unimplemented, "a status stays one"), codes.Unimplemented},
	} {
		for _, err := range []error{tt.err, fmt.Errorf("doing something: %w", tt.err)} {
			got := statusOf(err)
			if got.Code() != tt.want {
				t.Errorf("%v: got %s, want %s", err, got.Code(), tt.want)
			}
			if _, already := status.FromError(tt.err); !already && got.Message() != err.Error() {
				t.Errorf("%v: the message is %q", err, got.Message())
			}
		}
	}
}

// TestMessageFits: every status fits into a header, however long the error's message is.
func TestMessageFits(t *testing.T) {
	for _, s := range []string{"", "ok", strings.Repeat("ü", maxMessage), "bad \xff\xfe",
		strings.Repeat("x", maxMessage), strings.Repeat("\xff", 2*maxMessage)} {
		got := abridge(s, maxMessage)
		if len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("%.20q… of %d bytes became %d", s, len(s), len(got))
		}
		if len(s) <= maxMessage && utf8.ValidString(s) && got != s {
			t.Errorf("%.20q became %.20q", s, got)
		}
	}
}
