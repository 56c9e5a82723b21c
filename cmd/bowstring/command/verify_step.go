package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/schema"
)

// VerifyStepCmd is bowstring verify-step. It tests by data what the ranks of a mesh rely
// on: that replicas get the same samples.
type VerifyStepCmd struct {
	requestFlags
	// Mesh and World are two ways to describe the ranks; exactly one is given.
	Mesh  string `placeholder:"MESH" help:"Dimensions of the ranks, such as pp=1,dp=2,tp=4: the last one changes first."`
	World int64  `placeholder:"N" help:"How many ranks there are, in the place of --mesh."`
	Same  int64  `placeholder:"N" help:"With --world, how many ranks that follow one another get the same." default:"1"`
	Batch int64  `placeholder:"N" help:"Samples of a step, all ranks together (default: the server's)."`
	Step  int64  `placeholder:"N" help:"The step." default:"0"`
	JSON  bool   `name:"json" help:"Print a JSON array."`
}

// Help says what is compared.
func (*VerifyStepCmd) Help() string {
	return `Reads a step as each rank of a mesh does, and compares the digests of ranks that are to get the same samples. A digest is of the
positions, sizes and checksums of the samples in their order; each blob is compared with its checksum as it is read. A program that
trains compares what its ranks got by bowstring.torch.verify_step.`
}

// Validate is called by kong.
func (c *VerifyStepCmd) Validate() error {
	if err := c.check(); err != nil {
		return err
	}
	if (c.Mesh == "") == (c.World == 0) {
		return errors.New("--mesh, --world: give one of them, such as --mesh dp=2,tp=4")
	}
	if c.Mesh != "" && c.Same != 1 {
		return errors.New("--same: only with --world, as --mesh says which ranks get the same")
	}
	if c.Step < 0 {
		return fmt.Errorf("--step: got %d, want 0 or more", c.Step)
	}
	request := c.request()
	return request.Check()
}

// request returns the request of each rank. Digest makes the server add a digest to each
// batch.
func (c *VerifyStepCmd) request() schema.Request {
	r := c.requestFlags.request()
	r.World, r.Batch, r.Digest = &schema.World{Size: c.World, Mesh: c.Mesh}, c.Batch, true
	if c.Same > 1 {
		r.World.Replicate = c.Same
	}
	return r
}

// rankStep is what a rank got in the step.
type rankStep struct {
	Rank   int    `json:"rank"`
	Data   int    `json:"data_rank"`
	Rows   int    `json:"rows"`
	Digest string `json:"digest"` // "" if it got nothing
	Same   bool   `json:"same"`   // whether most ranks of the same data rank got the same
}

// Run reads the step as each rank, compares, and returns an error with the ranks that
// differ.
func (c *VerifyStepCmd) Run(ctx context.Context, app *App) error {
	var ranks []rankStep
	err := app.with(ctx, false, func(client *client) error {
		request := c.request()
		info, err := client.GetFlightInfo(ctx, &arrowflight.FlightDescriptor{Type: arrowflight.DescriptorCMD,
			Cmd: request.Marshal()})
		if err != nil {
			return err
		}
		// The server returns an endpoint for each rank. They are read one after another.
		for _, endpoint := range info.GetEndpoint() {
			got, err := c.read(ctx, client, endpoint.GetTicket())
			if err != nil {
				return err
			}
			ranks = append(ranks, got)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// All ranks are printed, also when some differ.
	wrong := differ(ranks)
	out := tableOf(">RANK", ">DATA RANK", ">ROWS", "DIGEST", "NOTE")
	for _, r := range ranks {
		note := ""
		if !r.Same {
			note = "differs"
		}
		out.add(strconv.Itoa(r.Rank), strconv.Itoa(r.Data), strconv.Itoa(r.Rows), r.Digest, note)
	}
	if err := app.show(c.JSON, ranks, out); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("step %d: rank %s got other samples than the ranks that are to get the same; see whether they "+
			"are served from one snapshot, and whether samples could not be read", c.Step, strings.Join(wrong, ", rank "))
	}
	return nil
}

// differ sets Same of each rank by a majority of the ranks with its data rank, and
// returns the others. A majority names the one that is wrong, where a comparison with the
// first could blame all others.
func differ(ranks []rankStep) (wrong []string) {
	// If two digests have equally many ranks, the one that reached the number first
	// counts as right.
	votes := map[int]map[string]int{}
	most := map[int]string{}
	for _, r := range ranks {
		if votes[r.Data] == nil {
			votes[r.Data], most[r.Data] = map[string]int{}, r.Digest
		}
		if votes[r.Data][r.Digest]++; votes[r.Data][r.Digest] > votes[r.Data][most[r.Data]] {
			most[r.Data] = r.Digest
		}
	}
	for i := range ranks {
		r := &ranks[i]
		if r.Same = r.Digest == most[r.Data]; !r.Same {
			wrong = append(wrong, strconv.Itoa(r.Rank))
		}
	}
	return wrong
}

// read reads the step of a rank's ticket. The ticket is narrowed to one step, because its
// own range is a whole epoch.
func (c *VerifyStepCmd) read(ctx context.Context, client *client, ticket *arrowflight.Ticket) (got rankStep, err error) {
	t, err := schema.ParseTicket(ticket.GetTicket())
	if err != nil {
		return got, err
	}
	stop := c.Step + 1
	// Stop is exclusive.
	t.Step, t.Stop = c.Step, &stop
	got.Rank, got.Data = t.Rank, t.DataRank(t.Rank)
	ctx, cancel := context.WithCancel(ctx) // ends a stream that is not read to its end
	defer cancel()
	stream, err := client.DoGet(ctx, &arrowflight.Ticket{Ticket: t.Marshal()})
	if err != nil {
		return got, err
	}
	reader, err := arrowflight.NewRecordReader(stream)
	if err != nil {
		return got, err
	}
	defer reader.Release()
	for reader.Next() {
		var about struct {
			Rows   int    `json:"rows"`
			Digest string `json:"digest"`
		}
		if err := json.Unmarshal(reader.LatestAppMetadata(), &about); err != nil {
			return got, fmt.Errorf("rank %d: what came with a batch: %w", t.Rank, err)
		}
		got.Rows += about.Rows
		// A step may come in several batches, and the last one has the digest.
		got.Digest = about.Digest
	}
	return got, reader.Err()
}
