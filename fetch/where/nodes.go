package where

import "github.com/expr-lang/expr/ast"

// maxNodes is how many nodes an expression may have in the form that is compiled: with tests for nulls, and a
// condition counted as often as it is compiled.
const maxNodes = 1 << 15

const (
	// textNode is how many bytes of text that literals are joined to count for a node.
	textNode = 64
	// zoneNodes is what a date counts for whose time zone is looked up in files.
	zoneNodes = 64
)

// checkSize counts the nodes of a tree, and fails if they are too many. It looks at each node once, however often it is
// in the tree.
func checkSize(text string, root ast.Node) (int, error) {
	c := &census{sizes: map[ast.Node]size{}}
	n := c.count(root).nodes
	if n > maxNodes {
		return 0, fail(text, root, "the expression comes to %.0f nodes with its tests for nulls, at most %d are allowed: "+
			"each name, literal, operator and call is one, and conditions count again where what they choose may be null",
			n, maxNodes)
	}
	return int(n), nil
}

// size is how large the tree below a node is. Counts of shared nodes grow beyond what an int holds.
type size struct {
	nodes   float64
	literal bool    // it is text, or becomes one literal of several
	text    float64 // bytes of that
}

// census counts nodes.
type census struct{ sizes map[ast.Node]size }

func (c *census) count(n ast.Node) size {
	if n == nil {
		return size{}
	}
	if s, ok := c.sizes[n]; ok {
		return s
	}
	s := size{nodes: 1}
	switch n := n.(type) {
	case *ast.StringNode:
		s.literal, s.text = true, float64(len(n.Value))
		s.nodes += s.text / textNode
	case *ast.BinaryNode:
		left, right := c.count(n.Left), c.count(n.Right)
		s.nodes += left.nodes + right.nodes
		if n.Operator == "+" && left.literal && right.literal {
			s.literal, s.text = true, left.text+right.text
			s.nodes += s.text / textNode // the optimizer joins each to all before it
		}
	default:
		for _, below := range children(n) {
			s.nodes += c.count(below).nodes
		}
		if name, args := callOf(n); name == "date" && len(args) > 2 {
			s.nodes += zoneNodes
		}
	}
	c.sizes[n] = s
	return s
}

// children are the nodes below a node, some of which may be nil.
func children(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.UnaryNode:
		return []ast.Node{n.Node}
	case *ast.BinaryNode:
		return []ast.Node{n.Left, n.Right}
	case *ast.ChainNode:
		return []ast.Node{n.Node}
	case *ast.MemberNode:
		return []ast.Node{n.Node, n.Property}
	case *ast.SliceNode:
		return []ast.Node{n.Node, n.From, n.To}
	case *ast.CallNode:
		return n.Arguments
	case *ast.BuiltinNode:
		return n.Arguments
	case *ast.PredicateNode:
		return []ast.Node{n.Node}
	case *ast.ConditionalNode:
		return []ast.Node{n.Cond, n.Exp1, n.Exp2}
	case *ast.ArrayNode:
		return n.Nodes
	case *ast.VariableDeclaratorNode:
		return []ast.Node{n.Value, n.Expr}
	}
	return nil
}
