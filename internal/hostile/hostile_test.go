package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/array"
	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// attacker is another address of this machine than the honest client's.
var attacker = net.IPv4(127, 0, 0, 2)

// patience is how long the server may take to answer a case, and the time that
// heavy ones ask for.
const (
	patience = 60 * time.Second
	heavy    = 2 * time.Second
)

// honest reads the dataset epoch after epoch and checks every sample.
type honest struct {
	rows   atomic.Int64
	cancel context.CancelFunc
	ended  chan error
}

func startHonest(t *testing.T, addr string) *honest {
	t.Helper()
	h := &honest{ended: make(chan error, 1)}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(t.Context())
	go func() { h.ended <- h.read(ctx, addr) }()
	return h
}

func (h *honest) read(ctx context.Context, addr string) error {
	c, err := arrowflight.NewClientWithMiddleware(addr, nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	ticket := fmt.Sprintf(`{"dataset": %q, "columns": ["position", "image"], "batch": 100, "shuffle": {"seed": 5}, "epochs": 1000000}`, Dataset)
	stream, err := c.DoGet(ctx, &arrowflight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		return err
	}
	rdr, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer rdr.Release()
	seen := map[int64]bool{}
	for rdr.Next() {
		positions, images := rdr.Record().Column(0).(*array.Int64), rdr.Record().Column(1).(*array.LargeBinary)
		for i := range positions.Len() {
			p := positions.Value(i)
			if seen[p] {
				return fmt.Errorf("position %d came twice in an epoch", p)
			}
			if seen[p] = true; !bytes.Equal(images.Value(i), blob(p)) {
				return fmt.Errorf("the image of position %d is wrong", p)
			}
		}
		if len(seen) == rows {
			clear(seen)
		}
		h.rows.Add(rdr.Record().NumRows())
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the stream ended: %w", rdr.Err())
}

// epoch waits for the honest client to have read all samples once more.
func (h *honest) epoch(t *testing.T) {
	t.Helper()
	want := h.rows.Load() + rows
	for deadline := time.Now().Add(patience); h.rows.Load() < want; time.Sleep(time.Millisecond) {
		select {
		case err := <-h.ended:
			h.ended <- err
			t.Fatalf("the honest client: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the honest client got no further")
		}
	}
}

// bystander asks for a where that is new each time, and a batch, on another tenant's account.
type bystander struct {
	cancel  context.CancelFunc
	ended   chan error
	begun   atomic.Int64 // when it asked for what it waits for, in nanoseconds since 1970
	longest atomic.Int64 // nanoseconds that it waited, since that was taken last
}

func startBystander(t *testing.T, addr string) *bystander {
	t.Helper()
	b := &bystander{ended: make(chan error, 1)}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "bowstring-tenant", "other"))
	go func() { b.ended <- b.ask(ctx, addr) }()
	return b
}

// stop ends it.
func (b *bystander) stop() error {
	b.cancel()
	return <-b.ended
}

// waited is the longest that it waited for an answer since this was asked last, or waits.
func (b *bystander) waited() time.Duration {
	now := time.Since(time.Unix(0, b.begun.Load()))
	return max(now, time.Duration(b.longest.Swap(0)))
}

func (b *bystander) ask(ctx context.Context, addr string) error {
	c, err := arrowflight.NewClientWithMiddleware(addr, nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		b.begun.Store(began.UnixNano())
		where := fmt.Sprintf(`{"dataset": %q, "where": "position != %d", "columns": ["position"]}`, Dataset, i)
		info, err := c.GetFlightInfo(ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
			Cmd: []byte(where)})
		if err == nil {
			err = b.read(ctx, c, info.Endpoint[0].Ticket)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if took := int64(time.Since(began)); took > b.longest.Load() {
			b.longest.Store(took)
		}
		select {
		case <-time.After(10 * time.Millisecond): // it is no attacker
		case <-ctx.Done():
		}
	}
	return nil
}

func (b *bystander) read(ctx context.Context, c arrowflight.Client, ticket *arrowflight.Ticket) error {
	stream, err := c.DoGet(ctx, ticket)
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Whatever is sent, the server lives within its memory, says what is wrong with
// it, and goes on giving an honest client its samples.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("some cases wait for the server's patience to end")
	}
	v := startVictim(t)
	h := startHonest(t, v.addr)
	h.epoch(t)
	other := startBystander(t, v.addr)
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if c.Admin {
				t.Skip("this server has no admin listener; cmd/bowstring/admin tests it")
			}
			limit := patience
			if c.Heavy {
				limit = heavy
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			before := h.rows.Load()
			got := c.Run(ctx, Target{Addr: v.addr, From: attacker})
			t.Logf("the honest client read %d rows, another tenant waited for %s; answered with: %.300v",
				h.rows.Load()-before, other.waited(), got)
			if err := c.Check(got); err != nil {
				t.Error(err)
			}
			if refused, ok := errors.AsType[*RefusedError](got); ok &&
				(refused.Code == codes.Internal || strings.Contains(refused.Message, "runtime error")) {
				t.Errorf("the server said what only its log should: %v", refused)
			}
			if got := v.resident(t); got > memoryLimit {
				t.Errorf("the server has %d MiB resident, its limit is %d", got>>20, int64(memoryLimit)>>20)
			}
		})
	}
	began := time.Now()
	h.epoch(t)
	t.Logf("an epoch after all of that took %s", time.Since(began))
	if err := other.stop(); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	h.cancel()
	if err := <-h.ended; err != nil {
		t.Errorf("the honest client: %v", err)
	}
	if err := v.stop(); err != nil {
		t.Errorf("the server ended: %v", err)
	}
	if bytes.Contains(v.log.Bytes(), []byte("panic")) {
		t.Error("a case made the server panic")
	}
}

// TestStopsUnderAttack: a server that is signalled to stop does so within its time to
// drain, whatever it has under way: every evaluation, cell and look ends with its
// context.
func TestStopsUnderAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("the server drains for some seconds")
	}
	v := startVictim(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for _, c := range Cases() {
		if c.Heavy {
			all.Go(func() { _ = c.Run(ctx, Target{Addr: v.addr, From: attacker}) }) // answered somehow, or not at all
		}
	}
	time.Sleep(heavy) // they are under way, as far as they come to it
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- v.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the server ended: %v", err)
		}
		t.Logf("it took %s, of which %s are for calls to end by themselves", time.Since(began), drainTimeout)
	case <-time.After(drainTimeout + patience/2):
		_ = v.cmd.Process.Signal(syscall.SIGQUIT) // its log has all goroutines
		t.Errorf("the server has not ended: %v", <-ended)
	}
	cancel()
	all.Wait()
}
