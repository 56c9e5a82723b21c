package where

import (
	"fmt"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser/operator"
)

// boundPrefix is how the names of values begin that a test needs twice. No column or function that people can write has
// such a name.
const boundPrefix = "bound "

// once gives a value a name and has it evaluated once, for a test that needs it twice. place is where it stands.
func (p *prepare) once(place, value ast.Node, test func(of ast.Node) ast.Node) ast.Node {
	switch value.(type) {
	case *ast.IdentifierNode, *ast.PointerNode, *ast.NilNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode,
		*ast.StringNode:
		return test(value)
	}
	name := fmt.Sprint(boundPrefix, p.bound)
	p.bound++
	of := &ast.IdentifierNode{Value: name}
	of.SetLocation(value.Location())
	n := &ast.VariableDeclaratorNode{Name: name, Value: value, Expr: test(of)}
	n.SetLocation(place.Location())
	return n
}

// chain is the comparisons of a < b < c, nil if n is something else. The parser gives both of them the same node b.
func chain(n *ast.BinaryNode) []*ast.BinaryNode {
	var tests []*ast.BinaryNode // the last one first
	for {
		test, ok := n.Right.(*ast.BinaryNode)
		if !ok || !operator.IsComparison(test.Operator) {
			return nil
		}
		tests = append(tests, test)
		before, ok := n.Left.(*ast.BinaryNode)
		if !ok {
			return nil
		}
		last := before
		if before.Operator == "&&" {
			if last, ok = before.Right.(*ast.BinaryNode); !ok {
				return nil
			}
		}
		if !operator.IsComparison(last.Operator) || last.Right != test.Left {
			return nil
		}
		if last == before {
			tests = append(tests, last)
			break
		}
		n = before
	}
	for i, j := 0, len(tests)-1; i < j; i, j = i+1, j-1 {
		tests[i], tests[j] = tests[j], tests[i]
	}
	return tests
}

// chained joins the comparisons of a chain, the first of which begins with left.
func (p *prepare) chained(left ast.Node, tests []*ast.BinaryNode) ast.Node {
	t := tests[0]
	if len(tests) == 1 {
		return binary(t, t.Operator, left, t.Right)
	}
	return p.once(t, t.Right, func(of ast.Node) ast.Node {
		return and(binary(t, t.Operator, left, of), p.chained(of, tests[1:]))
	})
}

// pathLen is how many steps the path has that ends in a node; maxPath + 1 if there are more.
func pathLen(n ast.Node) (count int) {
	for count <= maxPath {
		switch m := n.(type) {
		case *ast.ChainNode:
			n = m.Node
		case *ast.MemberNode:
			n = m.Node
			count++
		default:
			return count
		}
	}
	return count
}
