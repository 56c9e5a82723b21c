package flight

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"bowstring/schema"
)

// codeOf is the one place where errors become gRPC codes; the first match
// counts, anything else is INTERNAL. A lost race is UNAVAILABLE, as trying
// again can help: clients take ABORTED and FAILED_PRECONDITION for all sorts of
// things.
var codeOf = []struct {
	err  error
	code codes.Code
}{
	{schema.ErrInvalid, codes.InvalidArgument},
	{schema.ErrNotFound, codes.NotFound},
	{schema.ErrExists, codes.AlreadyExists},
	{schema.ErrDenied, codes.PermissionDenied},
	{schema.ErrLimit, codes.ResourceExhausted},
	{schema.ErrConflict, codes.Unavailable},
	{schema.ErrUnavailable, codes.Unavailable},
	{schema.ErrDataLoss, codes.DataLoss},
	{schema.ErrUnauthenticated, codes.Unauthenticated},
	{errCancelled, codes.Canceled},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// errCancelled is the cause of a stream that somebody ended by an action.
var errCancelled = errors.New("cancelled")

// maxMessage bounds a status message in bytes. It travels in an HTTP/2 header,
// where a byte can take three and clients accept 8 KiB.
const maxMessage = 2000

// toStatus makes a gRPC status of an error. What is a status already stays one.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	return statusOf(err).Err()
}

func statusOf(err error) *status.Status {
	for _, c := range codeOf {
		if errors.Is(err, c.err) {
			return retryable(status.New(c.code, abridge(err.Error())), err)
		}
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.New(codes.Internal, abridge(err.Error()))
}

// retryable says when to try again, where that may help: as google.rpc.RetryInfo, for
// those who look at details. The message ends in the same.
func retryable(st *status.Status, err error) *status.Status {
	limit, ok := errors.AsType[*schema.LimitError](err)
	if !ok || limit.After <= 0 {
		return st
	}
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(limit.After)}); err == nil {
		return with
	}
	return st
}

// abridge makes a message fit a status: valid UTF-8 of at most maxMessage bytes.
func abridge(msg string) string {
	msg = strings.ToValidUTF8(msg, "\uFFFD")
	if len(msg) <= maxMessage {
		return msg
	}
	const more = "…"
	return strings.ToValidUTF8(msg[:maxMessage-len(more)], "") + more
}
