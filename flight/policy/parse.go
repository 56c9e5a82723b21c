package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"bowstring/fetch/where"
	"bowstring/schema"
)

const (
	// MaxBytes bounds a file of rules.
	MaxBytes = 4 << 20
	// maxRules bounds the rules of a file. Decide is linear in them, for each call.
	maxRules = 10_000
	// maxPatterns bounds the patterns of a list. Matching is linear in them as well.
	maxPatterns = 1024
	// maxPattern bounds a pattern in bytes.
	maxPattern = 1024
)

// Error is a mistake in a file of rules or of tenants: where it is, and what would be
// right.
type Error struct {
	File         string
	Line, Column int // from 1
	Message      string
}

// Error has the form FILE:LINE:COLUMN: MESSAGE, which editors can jump to.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Unwrap returns schema.ErrInvalid.
func (e *Error) Unwrap() error { return schema.ErrInvalid }

// parser reads one file. kind is its top-level field, "rules" or "tenants", for messages.
type parser struct{ file, kind string }

// fail returns an error at the place of a node. yaml.v3 has no place for some empty
// nodes: their error is at the beginning.
func (p *parser) fail(n *yaml.Node, format string, args ...any) error {
	return &Error{p.file, max(n.Line, 1), max(n.Column, 1), fmt.Sprintf(format, args...)}
}

// yamlLine takes an error of yaml.v3 apart: it has the line only in its text.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// Parse compiles the text of a file of rules. file is its name in messages. Errors are of
// type *Error. Parse works on YAML nodes, not on structs: yaml.v3 loses lines and columns
// when it decodes into a struct.
func Parse(file string, text []byte) (*Rules, error) {
	p := &parser{file: file, kind: "rules"}
	root, err := p.document(text, `the file is empty, want "rules:" and a list; "rules: []" grants nothing to anybody`)
	if err != nil {
		return nil, err
	}
	var list *yaml.Node
	err = p.mapping(root, "the file", map[string]func(*yaml.Node) error{
		"version": p.version,
		"rules": func(n *yaml.Node) error {
			if n.Kind != yaml.SequenceNode {
				return p.fail(n, `rules: want a list, such as "- {principals: [ada], datasets: ['*'], rights: [read]}"`)
			}
			list = n
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, p.fail(root, `there is no "rules:", want it with a list; an empty one grants nothing to anybody`)
	}
	if len(list.Content) > maxRules {
		return nil, p.fail(list, "%d rules, want at most %d: patterns and groups make them fewer", len(list.Content),
			maxRules)
	}
	rs := &Rules{rules: []*Rule{}}
	for _, n := range list.Content {
		r, err := p.rule(n)
		if err != nil {
			return nil, err
		}
		if r.Name != "" && slices.ContainsFunc(rs.rules, func(o *Rule) bool { return o.Name == r.Name }) {
			return nil, p.fail(n, "a second rule is named %q, want each name once", r.Name)
		}
		rs.rules = append(rs.rules, r)
	}
	return rs, nil
}

// document returns the root of the only document of a file. empty is the message for a
// file without one.
func (p *parser) document(text []byte, empty string) (*yaml.Node, error) {
	if len(text) > MaxBytes {
		return nil, &Error{p.file, 1, 1, fmt.Sprintf("%d bytes, want at most %d", len(text), MaxBytes)}
	}
	if !utf8.Valid(text) {
		return nil, &Error{p.file, 1, 1, "it is not UTF-8, want text in UTF-8"}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, p.syntax(err)
	}
	if len(doc.Content) == 0 {
		return nil, &Error{p.file, 1, 1, empty}
	}
	if strings.Contains(string(text), "\n---") {
		if err := onlyOne(text); err != nil {
			return nil, &Error{p.file, 1, 1, err.Error()}
		}
	}
	return doc.Content[0], nil
}

// version accepts 1. A later format gets another number, so that an old server refuses it
// and does not misread it.
func (p *parser) version(n *yaml.Node) error {
	if n.Value != "1" || n.Tag != "!!int" {
		return p.fail(n, "version: got %s, want 1", schema.Quote(n.Value))
	}
	return nil
}

// onlyOne fails if the file has several documents: yaml.Unmarshal would silently read the
// first one alone, and drop the rules of the others.
func onlyOne(text []byte) error {
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return err
	}
	if err := dec.Decode(&doc); err == nil {
		return errors.New("several documents, want one: without \"---\" between them")
	}
	return nil
}

// syntax converts an error of yaml.v3, which names the line at best.
func (p *parser) syntax(err error) error {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		return &Error{p.file, 1, 1, err.Error()}
	}
	line, _ := strconv.Atoi(m[1])
	return &Error{p.file, max(line, 1), 1, "this is no YAML: " + m[2] + "; want \"" + p.kind + ":\" and a list of " +
		p.kind + ", indented with spaces"}
}

// mapping reads the fields of a mapping, each by its function. It refuses unknown and
// repeated fields: a misspelt `where` that was skipped would grant all rows. what names
// the mapping in messages.
func (p *parser) mapping(n *yaml.Node, what string, fields map[string]func(*yaml.Node) error) error {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	if n.Kind != yaml.MappingNode {
		return p.fail(n, "%s: want fields of the form name: value, of %s", what, strings.Join(names, ", "))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := fields[key.Value]
		if read == nil {
			hint := ""
			if near := schema.Nearest(key.Value, names); near != "" {
				hint = fmt.Sprintf(" (did you mean %q?)", near)
			}
			return p.fail(key, "unknown field %s, want one of %s%s", schema.Quote(key.Value), strings.Join(names, ", "),
				hint)
		}
		if seen[key.Value] {
			return p.fail(key, "%s is given twice, want it once", key.Value)
		}
		seen[key.Value] = true
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

// rule reads one rule. It refuses a rule that hides rows or columns and also grants
// write, drop or admin: a caller that changes a dataset learns what is in it, hidden rows
// included.
func (p *parser) rule(n *yaml.Node) (*Rule, error) {
	r := &Rule{Line: n.Line}
	// The nodes are kept for messages: errors about combinations of fields point to one of
	// them.
	var whereNode, columnsNode, rightsNode *yaml.Node
	var expression string
	var columns []string
	err := p.mapping(n, "a rule", map[string]func(*yaml.Node) error{
		"name":       func(n *yaml.Node) (err error) { r.Name, err = p.text("name", n); return err },
		"principals": func(n *yaml.Node) (err error) { r.Principals, err = p.patterns("principals", n); return err },
		"groups":     func(n *yaml.Node) (err error) { r.Groups, err = p.patterns("groups", n); return err },
		"datasets":   func(n *yaml.Node) (err error) { r.Datasets, err = p.datasets(n); return err },
		"rights":     func(n *yaml.Node) (err error) { rightsNode = n; r.Rights, err = p.rights(n); return err },
		"where":      func(n *yaml.Node) (err error) { whereNode = n; expression, err = p.where(n); return err },
		"columns":    func(n *yaml.Node) (err error) { columnsNode = n; columns, err = p.columns(n); return err },
	})
	switch {
	case err != nil:
		return nil, err
	case r.Principals == nil && r.Groups == nil:
		return nil,
			p.fail(n,
				`the rule matches no caller, want "principals" or "groups", such as principals: ["*"]; for callers without a name, write [anonymous]`)
	case r.Datasets == nil:
		return nil, p.fail(n, `the rule is for no dataset, want "datasets", such as datasets: ["team-a-*"]`)
	case rightsNode == nil:
		return nil,
			p.fail(n,
				`the rule says no rights, want "rights" with some of list, read, write, drop, admin, or [] to grant nothing`)
	}
	if whereNode == nil && columnsNode == nil {
		return r, nil
	}
	if r.Rights&^(List|Read) != 0 {
		at := whereNode
		if at == nil {
			at = columnsNode
		}
		return nil, p.fail(at, "a rule that hides rows or columns grants %s, want list and read at most: "+
			"a caller that writes or drops a dataset learns what is in it; grant that to others by another rule",
			r.Rights&^(List|Read))
	}
	// The columns are checked against a snapshot when one is read: the file is for many
	// datasets.
	r.Restriction = &schema.Restriction{Where: expression, Columns: columns}
	return r, nil
}

// text reads a scalar that is not empty. Numbers and booleans are accepted as their text: a
// principal may be named 42.
func (p *parser) text(field string, n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		return "", p.fail(n, "%s: want text", field)
	}
	return n.Value, nil
}

// list reads a list of distinct texts within the limits above. field names it in
// messages.
func (p *parser) list(field string, n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, p.fail(n, "%s: want a list, such as %s: [%s]", field, field, n.Value)
	}
	if len(n.Content) > maxPatterns {
		return nil, p.fail(n, "%s: %d of them, want at most %d", field, len(n.Content), maxPatterns)
	}
	out := []string{}
	for _, item := range n.Content {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		v, err := p.text(field, item)
		if err != nil {
			return nil, err
		}
		if len(v) > maxPattern {
			return nil, p.fail(item, "%s: %d bytes, want at most %d", field, len(v), maxPattern)
		}
		if slices.Contains(out, v) {
			return nil, p.fail(item, "%s: %s again, want each once", field, schema.Quote(v))
		}
		out = append(out, v)
	}
	return out, nil
}

// patterns reads a list that must not be empty. An empty list matches no caller, which
// the operator cannot have meant.
func (p *parser) patterns(field string, n *yaml.Node) ([]string, error) {
	out, err := p.list(field, n)
	if err == nil && len(out) == 0 {
		err = p.fail(n, "%s: an empty list matches nothing, want patterns, or the field left out", field)
	}
	return out, err
}

// datasets reads patterns of dataset names. It checks a name made from each pattern, so
// that a pattern that can match no valid name, such as one with @SNAPSHOT, is refused.
func (p *parser) datasets(n *yaml.Node) ([]string, error) {
	out, err := p.patterns("datasets", n)
	for i, d := range out {
		stem := strings.NewReplacer("*", "a", "?", "a").Replace(d)
		if bad := schema.CheckName("datasets", stem); bad != nil {
			return nil, p.fail(n.Content[i], "datasets: got %s, want a name of letters, digits, '.', '_' and '-' "+
				"with * for any characters and ? for one; "+
				"a rule is for all snapshots of a dataset", schema.Quote(d))
		}
	}
	return out, err
}

// rights reads names of rights and adds the rights that each includes. An empty list is
// allowed: such a rule denies.
func (p *parser) rights(n *yaml.Node) (Right, error) {
	names, err := p.list("rights", n)
	if err != nil {
		return 0, err
	}
	var granted Right
	known := make([]string, len(rightNames))
	for i, r := range rightNames {
		known[i] = r.name
	}
	for i, name := range names {
		at := slices.Index(known, name)
		if at < 0 {
			hint := ""
			if near := schema.Nearest(name, known); near != "" {
				hint = fmt.Sprintf(" (did you mean %q?)", near)
			}
			return 0, p.fail(n.Content[i], "rights: got %s, want some of %s%s", schema.Quote(name),
				strings.Join(known, ", "), hint)
		}
		granted |= rightNames[at].grant
	}
	return granted, nil
}

// where reads a filter expression and checks its syntax. If the expression is wrong, the
// error points into it: a plain or quoted scalar of one line, or a literal block, keeps
// the columns of the text; a folded block does not, and the error points to its
// beginning.
func (p *parser) where(n *yaml.Node) (string, error) {
	text, err := p.text("where", n)
	if err != nil {
		return "", p.fail(n, "where: want an expression, such as 'tenant == \"a\"'; leave the field out for all rows")
	}
	if err := where.CheckSyntax(text); err != nil {
		at := *n
		var fault *where.Error
		if errors.As(err, &fault) && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 && fault.Line == 1 {
			at.Column += fault.Column - 1
			if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
				at.Column++
			}
		} else if fault != nil && n.Style&yaml.LiteralStyle != 0 {
			at.Line += fault.Line
			at.Column = fault.Column
		}
		return "", p.fail(&at, "%s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return text, nil
}

// columns reads the visible columns. Patterns are refused: with `*`, a column that a
// later snapshot adds would be visible without a decision of the operator.
func (p *parser) columns(n *yaml.Node) ([]string, error) {
	out, err := p.list("columns", n)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, p.fail(n, "columns: an empty list shows nothing, want names of columns; rights: [] grants "+
			"nothing at all")
	}
	for i, c := range out {
		switch {
		case c == schema.PositionColumn || c == schema.SplitColumn:
			return nil, p.fail(n.Content[i], "columns: %s can always be seen, want it left out", c)
		case strings.Contains(c, "*"):
			return nil, p.fail(n.Content[i], "columns: got %s, want names of columns: there are no patterns here, so "+
				"that a column that is added later stays hidden", schema.Quote(c))
		}
	}
	return out, nil
}
