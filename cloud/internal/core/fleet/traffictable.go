package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic"
)

// Busiest orders the devices by the bytes on their wires.
func Busiest(nodes []Node) []Node {
	sum := func(n Node) uint64 {
		if n.Traffic == nil {
			return 0
		}
		b := n.Traffic.total()
		return b.Up + b.Down
	}
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Or(cmp.Compare(sum(b), sum(a)), cmp.Compare(a.Name, b.Name)) })
	return nodes
}

// TrafficTable returns a table with a row for each device that has or had a link, and one for all
// of them. Columns with a priority above 0 are for -o wide.
func TrafficTable(nodes []Node, now time.Time) *metav1.Table {
	t := &metav1.Table{}
	column := func(name string, wide bool) {
		c := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if wide {
			c.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, c)
	}
	for _, name := range []string{"Name", "Link", "Since", "Up", "Down", "Rate"} {
		column(name, false)
	}
	for class := range topic.Class(topic.Classes) {
		column(class.String(), false)
	}
	for class := range topic.Class(topic.Classes) {
		column(class.String()+"-messages", true)
	}
	var all Traffic
	all.Classes = make([]Class, topic.Classes)
	var rate float64
	row := func(name, link, since string, traffic *Traffic, rate float64) {
		total := traffic.total()
		cells := []any{name, link, since, human(total.Up), human(total.Down), human(uint64(rate*3600)) + "/h"}
		for i := range topic.Classes {
			var c Class
			if i < len(traffic.Classes) {
				c = traffic.Classes[i]
			}
			cells = append(cells, human(c.UpBytes+c.DownBytes))
		}
		for i := range topic.Classes {
			var c Class
			if i < len(traffic.Classes) {
				c = traffic.Classes[i]
			}
			cells = append(cells, fmt.Sprint(c.UpMessages+c.DownMessages))
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: cells})
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Traffic == nil || n.Session.Since == nil {
			continue
		}
		counted := now // until the last renewal, where the link is gone
		if n.LastContact != nil {
			counted = n.LastContact.Time
		}
		total := n.Traffic.total()
		per := float64(total.Up+total.Down) / max(1, counted.Sub(n.Session.Since.Time).Seconds())
		row(n.Name, string(n.Link), past(n.Session.Since, now), n.Traffic, per)
		all.Wire.Up += total.Up
		all.Wire.Down += total.Down
		if n.Link == Up {
			rate += per
		}
		for i, c := range n.Traffic.Classes {
			sum := &all.Classes[i]
			sum.UpBytes += c.UpBytes
			sum.DownBytes += c.DownBytes
			sum.UpMessages += c.UpMessages
			sum.DownMessages += c.DownMessages
		}
	}
	row("(all)", "", "", &all, rate)
	return t
}

// human is a number of bytes, in powers of 1000 as links are sold.
func human(n uint64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	v := float64(n)
	for i := range len(units) {
		if v /= 1000; v < 999.5 || i == len(units)-1 {
			return fmt.Sprintf("%.3g%cB", v, units[i])
		}
	}
	return ""
}
