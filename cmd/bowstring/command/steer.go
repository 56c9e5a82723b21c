package command

import (
	"context"
	"strconv"
	"strings"

	"bowstring/schema"
)

// SteerCmd is bowstring steer.
type SteerCmd struct {
	Dataset  string   `arg:"" help:"Dataset of the mixture's first source."`
	Job      string   `arg:"" optional:"" name:"run" help:"Name that the mixture has by run. Without it: list the runs."`
	Weights  []string `arg:"" optional:"" name:"source=weight" help:"New weights by the names of sources. The others keep theirs."`
	Over     int64    `placeholder:"STEPS" help:"In how many steps the weights change to these (default: at once)."`
	FromStep *int64   `placeholder:"STEP" help:"Step at which the change begins, counted over all epochs (default: the first that no stream may have served)."`
	JSON     bool     `name:"json" help:"Print a JSON object; without RUN an array."`
}

// Help says what a change does.
func (*SteerCmd) Help() string {
	return `Changes the weights of a mixture while a job reads it. The request names its run: {"mixture": {"run": "llama-7", ...}}.
All ranks of the job obey the change at the same step, on all servers of a store, and no sample is lost or repeated.`
}

// mixtureRun is the part of the answers of the actions steer and runs that is shown.
type mixtureRun struct {
	// Settled is the number of steps whose weights cannot change any more. Step is the
	// step at which a change takes effect; it is nil in a list.
	Dataset string                 `json:"dataset"`
	Run     string                 `json:"run"`
	Owner   string                 `json:"owner,omitempty"`
	Step    *int64                 `json:"step,omitempty"`
	Settled int64                  `json:"settled"`
	Changes []schema.MixtureChange `json:"changes"`
	Created string                 `json:"created"`
	Expires string                 `json:"expires"`
}

// Run changes the weights of a run, or lists runs.
func (c *SteerCmd) Run(ctx context.Context, app *App) error {
	// Without a run there is nothing to change.
	if c.Job == "" {
		return c.list(ctx, app)
	}
	weights, err := c.weights()
	if err != nil {
		return err
	}
	// The server chooses the step: only it knows which steps its streams have served.
	done, err := ask[mixtureRun](ctx, app, "steer", struct {
		Dataset string             `json:"dataset"`
		Run     string             `json:"run"`
		Weights map[string]float64 `json:"weights"`
		Over    int64              `json:"over,omitempty"`
		From    *int64             `json:"from_step,omitempty"`
	}{c.Dataset, c.Job, weights, c.Over, c.FromStep})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(app.Stdout, done)
	}
	if done.Step != nil {
		app.Notef("the weights of %s change at step %d", done.Run, *done.Step)
	}
	return nil
}

// weights parses the arguments SOURCE=WEIGHT. The server checks names and ranges, because
// it knows the mixture.
func (c *SteerCmd) weights() (map[string]float64, error) {
	if len(c.Weights) == 0 {
		return nil, usagef("steer: got no weights, want SOURCE=WEIGHT, such as code=0.5")
	}
	// Sources that are not named keep their weights.
	weights := map[string]float64{}
	for _, given := range c.Weights {
		// The server checks the values.
		name, text, _ := strings.Cut(given, "=")
		weight, err := strconv.ParseFloat(text, 64)
		if err != nil || name == "" {
			return nil, usagef("steer: got %q, want SOURCE=WEIGHT, such as code=0.5", given)
		}
		if _, twice := weights[name]; twice {
			return nil, usagef("steer: got source %q twice", name)
		}
		weights[name] = weight
	}
	return weights, nil
}

// list prints the runs of a dataset.
func (c *SteerCmd) list(ctx context.Context, app *App) error {
	list, err := askAll[mixtureRun](ctx, app, "runs", map[string]string{"dataset": c.Dataset})
	if err != nil {
		return err
	}
	out := tableOf("RUN", "OWNER", ">SETTLED", ">CHANGES", "EXPIRES")
	for _, r := range list {
		out.add(r.Run, r.Owner, strconv.FormatInt(r.Settled, 10), strconv.Itoa(len(r.Changes)), r.Expires)
	}
	return app.show(c.JSON, list, out)
}
