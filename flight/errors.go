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
	{schema.ErrNotSupported, codes.Unimplemented},
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

const (
	// maxDetailed bounds the message of a status with details in bytes: such a message travels three times.
	maxDetailed = 600
	// movedReason is the reason of an ErrorInfo that says where a stream goes on.
	movedReason = "MOVED"
	// detailsHeader is what a client sends that reads details by pyarrow.
	detailsHeader = "bowstring-details"
	// arrowIOError is the status code of Arrow C++ for what goes wrong on the way.
	arrowIOError = "5"
)

// ended makes a gRPC status of the error that a call ends with. An error that is a status
// already stays unchanged.
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

// detailed adds to a status what programs go by, as details of google.rpc: when to try again as a RetryInfo, and where
// to go on as an ErrorInfo. A message is for people: it may hold names from data, so that nothing is read from it.
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

// detailTrailers are the trailers by which pyarrow hands over a status's details, as extra_info of its exception; nil
// for a status without. They go to clients that ask by detailsHeader, as pyarrow's exceptions have other classes then.
func detailTrailers(ctx context.Context, st *status.Status) metadata.MD {
	asked := metadata.ValueFromIncomingContext(ctx, detailsHeader)
	if len(asked) != 1 || asked[0] != "1" || len(st.Details()) == 0 {
		return nil
	}
	return metadata.Pairs("x-arrow-status", arrowIOError, "x-arrow-status-message-bin", st.Message())
}

// abridge makes a message fit a status: valid UTF-8 of at most most bytes.
func abridge(msg string, most int) string {
	msg = strings.ToValidUTF8(msg, "\uFFFD")
	if len(msg) <= most {
		return msg
	}
	const more = "…"
	return strings.ToValidUTF8(msg[:most-len(more)], "") + more
}
