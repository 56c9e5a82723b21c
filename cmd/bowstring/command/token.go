package command

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bowstring/flight/auth"
	"bowstring/schema"
)

// TokenCmd is bowstring token. It works on the file of tokens, and a running server reads
// the file again. A connection to the server is not needed.
type TokenCmd struct {
	Create TokenCreateCmd `cmd:"" help:"Make a token, and print it, once."`
	Revoke TokenRevokeCmd `cmd:"" help:"End a token, and the calls that it has let in."`
	List   TokenListCmd   `cmd:"" help:"List the tokens there are, without their secrets."`
}

// tokenFlags are the flags of the commands that work on a file of tokens.
type tokenFlags struct {
	File string `name:"tokens" type:"path" placeholder:"FILE" help:"File of tokens (default: the one that serve.tokens names)."`
}

// path returns the file of the flag, or else that of serve's settings.
func (f *tokenFlags) path(app *App) (string, error) {
	if f.File != "" {
		return f.File, nil
	}
	// The same setting as serve's, so that both work on one file without a flag.
	configured, err := app.settings.effective("serve.tokens")
	if err != nil {
		return "", err
	}
	if path, _ := configured.(string); path != "" {
		return path, nil
	}
	return "", usagef("--tokens FILE is needed: the file that serve --tokens names (BOWSTRING_SERVE_TOKENS, " +
		"serve.tokens)")
}

// TokenCreateCmd is bowstring token create.
type TokenCreateCmd struct {
	tokenFlags
	Principal string   `required:"" placeholder:"NAME" help:"Principal of the token."`
	Group     []string `placeholder:"NAME" help:"Group that the principal is in; may be given several times."`
	Tenant    []string `placeholder:"NAME" help:"On whose account it calls; further ones are those that it may choose by the header bowstring-tenant."`
	Expires   lifetime `default:"90d" placeholder:"DURATION" help:"How long it is good: such as 12h, 90d, or never (default: ${default})."`
}

// Run makes the token and prints it. The file has only its hash, so that it cannot be
// shown again.
func (c *TokenCreateCmd) Run(app *App) error {
	path, err := c.path(app)
	if err != nil {
		return err
	}
	// The secret is made by AddToken, and never stored.
	t := auth.Token{Principal: c.Principal, Groups: c.Group}
	if len(c.Tenant) > 0 {
		// The first tenant is the default of the token's calls.
		t.Tenant, t.Tenants = c.Tenant[0], c.Tenant[1:]
	}
	if c.Expires > 0 {
		// Seconds are enough, and the file stays readable.
		t.Expires = time.Now().Add(time.Duration(c.Expires)).UTC().Truncate(time.Second)
	}
	token, err := auth.AddToken(path, &t)
	if err != nil {
		return err
	}
	// A token without an end has the zero time.
	until := "for ever"
	if !t.Expires.IsZero() {
		until = "until " + t.Expires.Format(time.RFC3339)
	}
	app.Notef("token %s of %s is good %s; it is shown this once", t.ID, t.Principal, until)
	// Only the token goes to standard output, for a script that stores it.
	return app.Printf("%s\n", token)
}

// TokenRevokeCmd is bowstring token revoke.
type TokenRevokeCmd struct {
	tokenFlags
	ID string `arg:"" help:"ID of the token: the part between the underscores, as token list shows it."`
}

// Run revokes the token. Its entry stays in the file, with the time.
func (c *TokenRevokeCmd) Run(app *App) error {
	path, err := c.path(app)
	if err != nil {
		return err
	}
	t, err := auth.RevokeToken(path, c.ID)
	if err != nil {
		return err
	}
	app.Notef("token %s of %s was revoked %s", t.ID, t.Principal, t.Revoked.Format(time.RFC3339))
	return nil
}

// TokenListCmd is bowstring token list.
type TokenListCmd struct {
	tokenFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

// Run lists the tokens.
func (c *TokenListCmd) Run(app *App) error {
	path, err := c.path(app)
	if err != nil {
		return err
	}
	tokens, err := auth.ReadTokens(path)
	if err != nil {
		return err
	}
	// The line has no hash: it is of no use to an operator.
	type line struct {
		ID        string    `json:"id"`
		Principal string    `json:"principal"`
		Groups    []string  `json:"groups,omitempty"`
		Tenants   []string  `json:"tenants,omitempty"`
		Created   time.Time `json:"created"`
		Expires   time.Time `json:"expires,omitzero"`
		State     string    `json:"state"`
	}
	// JSON has an empty list, and not null.
	lines := []line{}
	out := tableOf("ID", "PRINCIPAL", "GROUPS", "TENANTS", "EXPIRES", "")
	for i := range tokens {
		t := &tokens[i]
		l := line{ID: t.ID, Principal: t.Principal, Groups: t.Groups, Created: t.Created, Expires: t.Expires,
			State: t.State(time.Now())}
		if t.Tenant != "" {
			l.Tenants = append([]string{t.Tenant}, t.Tenants...)
		}
		expires := "never"
		if !t.Expires.IsZero() {
			expires = t.Expires.Format(time.RFC3339)
		}
		lines = append(lines, l)
		out.add(l.ID, l.Principal, strings.Join(l.Groups, " "), strings.Join(l.Tenants, " "), expires, l.State)
	}
	return app.show(c.JSON, lines, out)
}

// lifetime is a duration that may be written in days. Zero is never.
type lifetime time.Duration

// UnmarshalText parses a lifetime. Days are limited to a century: a time.Duration holds
// 292 years, and a larger number would overflow.
func (l *lifetime) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "never" {
		*l = 0
		return nil
	}
	// ParseDuration knows no days, so that its error is replaced.
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		d = 24 * time.Hour * time.Duration(min(n, 365*100))
	}
	if err != nil || d <= 0 {
		return fmt.Errorf("got %s, want a time such as 12h or 90d, or never", schema.Quote(s))
	}
	*l = lifetime(d)
	return nil
}
