package arch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// comparedFigure is a figure of docs/comparison.md, with the row of docs/dev/benchmarks.md that
	// it is from: "71.8 kB <!-- bytes on an idle link -->"; "ratio of" names the column "figure".
	comparedFigure = regexp.MustCompile(`([\d.]+)(?: ([^\d|<(]*?))? <!-- (ratio of )?([^>]+) -->`)
	measuredFigure = regexp.MustCompile(`^([\d.e+]+) ?([a-zA-Z ]*?)(?: \(|$)`)
	digit          = regexp.MustCompile(`\d`)
)

// TestComparisonHasTheFiguresOfTheBenchmarks: the figures of Skerry in docs/comparison.md are those
// of the last benchmarks, rounded.
func TestComparisonHasTheFiguresOfTheBenchmarks(t *testing.T) {
	root := source(t).root
	var pages [2]string
	for i, name := range []string{"docs/comparison.md", "docs/dev/benchmarks.md"} {
		raw, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		pages[i] = string(raw)
	}
	compared, complaints := otherFigures(pages[0], pages[1])
	for _, c := range complaints {
		t.Error("docs/comparison.md: ", c)
	}
	if compared < 10 {
		t.Errorf("%d figures compared; are they found?", compared)
	}
}

// otherFigures are complaints about figures of a comparison that benchmarks don't have, and figures
// of Skerry's column that name no benchmark.
func otherFigures(comparison, benchmarks string) (compared int, complaints []string) {
	rows := map[string][]string{}
	for line := range strings.Lines(benchmarks) {
		if cells := strings.Split(line, " | "); len(cells) == 6 {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells
		}
	}
	for _, m := range comparedFigure.FindAllStringSubmatch(comparison, -1) {
		compared++
		cells, ok := rows[m[4]]
		if !ok {
			complaints = append(complaints, "no benchmark is called "+m[4])
			continue
		}
		cell := cells[1]
		if m[3] != "" {
			cell = cells[3]
		}
		if want, err := rounded(cell, m[1], m[2]); err != nil {
			complaints = append(complaints, fmt.Sprintf("%s: %v", m[4], err))
		} else if want != m[1] {
			complaints = append(complaints, fmt.Sprintf("%s: %s, measured were %s", m[4], m[1], want))
		}
	}
	_, table, _ := strings.Cut(comparison, "## Measured against KubeEdge\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		if cells := strings.Split(comparedFigure.ReplaceAllString(line, ""), " | "); len(cells) == 3 && digit.MatchString(cells[1]) {
			complaints = append(complaints, "a figure without the name of its benchmark: "+cells[1])
		}
	}
	return compared, complaints
}

// rounded is a measured figure in another unit, with as many decimals as a number has.
func rounded(measured, like, unit string) (string, error) {
	m := measuredFigure.FindStringSubmatch(measured)
	if m == nil {
		return "", fmt.Errorf("no figure is in %q", measured)
	}
	figure, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return "", fmt.Errorf("a benchmark: %w", err)
	}
	switch from := m[2]; {
	case from == "bytes" && unit == "kB", from == "ms" && unit == "s":
		figure /= 1000
	case from == "ms" && unit == "%": // of a minute
		figure /= 600
	case from == unit, from == "x" && unit == "times", (from == "fsyncs" || from == "writes") && unit == "":
	default:
		return "", fmt.Errorf("%q measured, %q in the comparison", from, unit)
	}
	_, decimals, _ := strings.Cut(like, ".")
	return strconv.FormatFloat(figure, 'f', len(decimals), 64), nil
}

func TestComparison_findsOtherFigures(t *testing.T) {
	benchmarks := "| idle | 7.182e+04 bytes (1 to 2, 5 times) | - | 1.11 x | - | yes |\n| cpu | 990 ms (1 to 2, 5 times) | - | 1.16 x | - | yes |\n| none | 0 writes | - | 0 writes | 0 | yes |\n"
	for text, want := range map[string]string{
		"71.8 kB <!-- idle -->, 0 <!-- none --> further": "",
		"72 kB <!-- idle -->, 1.65 % <!-- cpu -->":       "",
		"(1.16 times <!-- ratio of cpu -->)":             "",
		"79 kB <!-- idle -->":                            "idle: 79, measured were 72",
		"1.3 s <!-- cpu -->":                             "cpu: 1.3, measured were 1.0",
		"72 MB <!-- idle -->":                            `idle: "bytes" measured, "MB" in the comparison`,
		"2 s <!-- gone -->":                              "no benchmark is called gone",
		"20 kB":                                          "a figure without the name of its benchmark: 20 kB",
	} {
		_, complaints := otherFigures("## Measured against KubeEdge\n| traffic | "+text+" | 1,187 kB |\n", benchmarks)
		if got := strings.Join(complaints, "; "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
