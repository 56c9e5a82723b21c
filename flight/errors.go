package flight

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"bowstring/schema"
)

// codeOf is the only place where errors become gRPC codes. The first match counts, and
// every other error is INTERNAL. A lost race is UNAVAILABLE, because a retry can help.
// Clients treat ABORTED and FAILED_PRECONDITION in different ways, so neither is used.
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
	{schema.ErrNotSupported, codes.Unimplemented},
	{schema.ErrUnauthenticated, codes.Unauthenticated},
	{errCancelled, codes.Canceled},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// errCancelled is the cause of a stream that an action has cancelled.
var errCancelled = errors.New("cancelled")

// maxMessage bounds a status message in bytes. It travels in an HTTP/2 header. There a byte
// can take three, and clients accept 8 KiB.
const maxMessage = 2000

const (
	// maxDetailed bounds the message of a status with details in bytes. Such a message is
	// sent three times: as the message, in the details, and for pyarrow.
	maxDetailed = 600
	// movedReason is the reason in the ErrorInfo of a stream that continues elsewhere.
	movedReason = "MOVED"
	// detailsHeader is sent by clients that read details through pyarrow.
	detailsHeader = "bowstring-details"
	// arrowIOError is the status code IOError of Arrow C++.
	arrowIOError = "5"
)

// ended returns the gRPC status for the error of a call. An error that is already a status
// stays unchanged.
func ended(ss grpc.ServerStream, err error) error {
	if err == nil {
		return nil
	}
	st := statusOf(err)
	if trailers := detailTrailers(ss.Context(), st); trailers != nil {
		ss.SetTrailer(trailers)
	}
	return st.Err()
}

// statusOf returns the gRPC status of an error, with a message that fits into a header.
func statusOf(err error) *status.Status {
	for _, c := range codeOf {
		if errors.Is(err, c.err) {
			return detailed(status.New(c.code, abridge(err.Error(), maxMessage)), err)
		}
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.New(codes.Internal, abridge(err.Error(), maxMessage))
}

// detailed adds to a status the facts that programs use, as details of google.rpc: a
// RetryInfo with the delay, or an ErrorInfo with the addresses to continue at. Programs
// must not parse the message: it may contain names from data, so a dataset could forge an
// address.
func detailed(st *status.Status, err error) *status.Status {
	var detail protoadapt.MessageV1
	if limit, ok := errors.AsType[*schema.LimitError](err); ok && limit.After > 0 {
		detail = &errdetails.RetryInfo{RetryDelay: durationpb.New(limit.After)}
	} else if moved, ok := errors.AsType[*movedError](err); ok {
		detail = &errdetails.ErrorInfo{Reason: movedReason, Domain: "bowstring",
			Metadata: map[string]string{"locations": strings.Join(moved.to, " ")}}
	} else {
		return st
	}
	short := status.New(st.Code(), abridge(st.Message(), maxDetailed))
	if with, err := short.WithDetails(detail); err == nil {
		return with
	}
	return st
}

// detailTrailers returns the trailers that make pyarrow expose a status's details as the
// extra_info of its exception; nil for a status without details. Only clients that send
// detailsHeader get them, because pyarrow then raises exceptions of other classes.
func detailTrailers(ctx context.Context, st *status.Status) metadata.MD {
	asked := metadata.ValueFromIncomingContext(ctx, detailsHeader)
	if len(asked) != 1 || asked[0] != "1" || len(st.Details()) == 0 {
		return nil
	}
	return metadata.Pairs("x-arrow-status", arrowIOError, "x-arrow-status-message-bin", st.Message())
}

// abridge shortens a message to valid UTF-8 of at most most bytes.
func abridge(msg string, most int) string {
	msg = strings.ToValidUTF8(msg, "\uFFFD")
	if len(msg) <= most {
		return msg
	}
	const more = "…"
	return strings.ToValidUTF8(msg[:most-len(more)], "") + more
}
