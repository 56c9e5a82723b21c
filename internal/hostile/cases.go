package hostile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// Dataset is the dataset that the cases name and that an honest client reads. It has a
// column "position" and a blob column "image". Scratch is the dataset of uploads.
const (
	Dataset = "honest"
	Scratch = "scratch"
)

// Case is an attack: a request, or a behavior, of a client without any rights. Cases are
// constant, and may run concurrently.
type Case struct {
	// Name is unique. Run performs the attack, and returns the server's answer.
	Name string
	// Codes and Text describe the right answer: one of the codes, and words of the
	// message. Without codes, any answer is right, and none at all too.
	Codes []codes.Code
	Text  string
	// Heavy cases keep the server busy until their deadline. The server may let them: it
	// owes each client a fair share, and the test checks that the others get theirs.
	Heavy bool
	// Admin cases attack the admin listener, which a target may not have.
	Admin bool
	Run   func(ctx context.Context, t Target) error
}

// Check returns nil if err is the right answer to the case.
func (c Case) Check(err error) error {
	// Such a case only has to leave the server working for others.
	if len(c.Codes) == 0 {
		return nil
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return fmt.Errorf("%s: the server said %w, want %s with %q", c.Name, orNothing(err), c.Codes, c.Text)
	}
	for _, code := range c.Codes {
		if refused.Code == code && strings.Contains(refused.Message, c.Text) {
			return nil
		}
	}
	return fmt.Errorf("%s: the server said %w, want %s with %q", c.Name, err, c.Codes, c.Text)
}

// errNothing stands for success where an error was expected, so that messages read well.
var errNothing = errors.New("nothing was wrong with it")

func orNothing(err error) error {
	if err == nil {
		return errNothing
	}
	return err
}

var (
	// Most cases are rejected as invalid, or as too much.
	invalid   = []codes.Code{codes.InvalidArgument}
	exhausted = []codes.Code{codes.ResourceExhausted}
	either    = []codes.Code{codes.InvalidArgument, codes.ResourceExhausted}
)

// Cases returns all cases.
func Cases() []Case {
	return slices.Concat(uploads(), requests(), actionsAndNames(), samplesAndExpressions(), connections())
}

// asking returns a case that makes one call.
func asking(name, method string, want []codes.Code, text string, messages ...[]byte) Case {
	return Case{Name: name, Codes: want, Text: text, Run: func(ctx context.Context, t Target) error {
		return t.Ask(ctx, method, messages...)
	}}
}

// requests are cases of tickets, descriptors and actions. Most are small requests that
// would cost the server much: nesting, repetition, and numbers at the ends of their
// ranges.
func requests() []Case {
	zeros := strings.TrimSuffix(strings.Repeat("0,", 2000), ",")
	// The helpers build a request that names the honest dataset.
	slow := func(where string) string { return fmt.Sprintf(`{"dataset": %q, "where": %q}`, Dataset, where) }
	info := func(name, command string) Case {
		return Case{Name: name, Heavy: true, Run: func(ctx context.Context, t Target) error {
			return t.Ask(ctx, "GetFlightInfo", descriptor(command))
		}}
	}
	get := func(name, ticket string) Case {
		return Case{Name: name, Heavy: true, Run: func(ctx context.Context, t Target) error {
			return t.Ask(ctx, "DoGet", textField(1, ticket))
		}}
	}
	bad := func(name, ticket, text string) Case {
		return asking(name, "DoGet", invalid, text, textField(1, ticket))
	}
	// Longer than MaxRequestBytes.
	long := strings.Repeat("x", 3<<20)
	return []Case{
		asking("where that is nested", "GetFlightInfo", exhausted, "steps for a row",
			descriptor(slow("all(["+zeros+"], all(["+zeros+"], # >= 0))"))),
		asking("where with regular expressions", "GetFlightInfo", invalid, "instructions",
			descriptor(slow(`file_name matches "`+strings.Repeat("a{1,1000}", 1500)+`"`))),
		asking("where with classes of characters", "GetFlightInfo", invalid, "classes such as",
			descriptor(slow("id matches `(?i)"+strings.Repeat("[B-\U0001e942]", 1800)+"`"))),
		asking("where with a long path", "GetFlightInfo", invalid, "a path of more than",
			descriptor(slow(`any([1, "x"], #`+strings.Repeat(".a", 8000)+" == 1)"))),
		asking("where with literals that are joined", "GetFlightInfo", invalid, "nodes",
			descriptor(slow(`id == "`+strings.Repeat("x", 8000)+`"`+strings.Repeat(`+"a"`, 2000)))),
		info("where of ranges within ranges", slow(ranges(120)+" == 1")),
		info("columns of ranges within ranges", fmt.Sprintf(
			`{"dataset": %q, "operators": {"a": {"expression": %q}, "b": {"expression": %[2]q}}}`, Dataset, ranges(120))),
		info("endpoints with a long where", fmt.Sprintf(`{"dataset": %q, "world": {"size": 65536}, "where": %q}`,
			Dataset, strings.Repeat("position >= 0 and ", 800)+"true")),
		info("pad of a batch of 2^31-1", fmt.Sprintf(`{"dataset": %q, "batch": 2147483647, "remainder": "pad"}`,
			Dataset)),
		info("a selection of one use", fmt.Sprintf(`{"dataset": %q, "selection": {"positions": [%s]}}`, Dataset,
			numbers(300))),
		get("epochs without rows",
			fmt.Sprintf(`{"dataset": %q, "columns": ["image"], "batch": 4, "world": {"size": 6}, "rank": 3, "epochs": 2147483647, "shuffle": {"seed": 1}}`, Dataset)),
		{Name: "batches of 1 GiB", Heavy: true, Run: func(ctx context.Context, t Target) error {
			return t.stalled(ctx, 64,
				fmt.Sprintf(`{"dataset": %q, "columns": ["image"], "batch": 2147483647, "batch_bytes": 1073741824}`,
					Dataset))
		}},
		{Name: "short streams of many seeds", Heavy: true, Run: func(ctx context.Context, t Target) error {
			for seed := 0; seed < 300 && ctx.Err() == nil; seed++ {
				ticket := fmt.Sprintf(`{"dataset": %q, "columns": ["position"], "batch": 1, "stop": 1, "shuffle": {"seed": %d}}`, Dataset, seed)
				if err := t.Ask(ctx, "DoGet", textField(1, ticket)); err != nil {
					return err
				}
			}
			return nil
		}},
		asking("cancelling what is not there", "DoAction", []codes.Code{codes.InvalidArgument, codes.NotFound}, "",
			append(textField(1, "CancelFlightInfo"), textField(2, strings.Repeat("\x0a\x00", 1000))...)),
		asking("ticket of 3 MiB", "DoGet", exhausted, "MaxRequestBytes", textField(1, long)),
		asking("descriptor of 3 MiB", "GetFlightInfo", exhausted, "MaxRequestBytes", descriptor(long)),
		asking("action of 3 MiB", "DoAction", exhausted, "MaxRequestBytes", textField(2, long)),
		asking("criteria of 3 MiB", "ListFlights", exhausted, "MaxRequestBytes", textField(1, long)),
		asking("no protobuf", "GetFlightInfo", invalid, "protobuf", []byte{0xff, 0xff, 0xff}),
		asking("no FlightData", "DoPut", invalid, "FlightData", []byte{0xff, 0xff, 0xff}),
		bad("no JSON", strings.Repeat("[", 100_000), "ticket"),
		bad("negative", fmt.Sprintf(`{"dataset": %q, "step": -1}`, Dataset), "step"),
		bad("step beyond all", fmt.Sprintf(`{"dataset": %q, "step": 9223372036854775808}`, Dataset), "step"),
		bad("epochs beyond the last",
			fmt.Sprintf(`{"dataset": %q, "epochs": 2, "shuffle": {"epoch": 18446744073709551615}}`, Dataset), "epochs"),
	}
}

// stalled begins n streams that it never reads, and keeps them open until ctx ends.
func (t Target) stalled(ctx context.Context, n int, ticket string) error {
	c, err := t.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		s, err := c.Open(flightURL+"DoGet", timeoutOf(ctx)...)
		if err != nil {
			return err
		}
		if err := s.Write(ctx, framed(textField(1, ticket)), true); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// numbers returns a list of n positions, as JSON without brackets.
func numbers(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(i * 3)
	}
	return strings.Join(list, ",")
}

// ranges returns an expression of n nested ranges. Each level multiplies the work.
func ranges(n int) string {
	return strings.Repeat("len(string(", n) + "position" + strings.Repeat(" in 1..9))", n)
}
