package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// Cut is a way an uplink can be broken.
type Cut string

const (
	// Whole is an uplink that works.
	Whole Cut = ""
	// Carrier is a cable that is pulled: the edge sees its interface without a carrier.
	Carrier Cut = "carrier"
	// Silent is a network that swallows everything: the edge's interface looks fine.
	Silent Cut = "silent"
)

// SetCut breaks or repairs edge n's uplink. The LAN stays.
func SetCut(router host.Host, n int, c Cut) error {
	links, err := router.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	l, err := links.LinkByName(upName(n))
	if err != nil {
		return fmt.Errorf("finding %s: %w", upName(n), err)
	}
	if c == Carrier {
		err = links.LinkSetDown(l)
	} else {
		err = links.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("switching %s: %w", upName(n), err)
	}
	six := false
	err = router.Do(func() error {
		all, err := families(chainCut)
		if err != nil {
			return err
		}
		six = len(all) == 2
		var errs []error
		for _, t := range all {
			for _, direction := range []string{"-i", "-o"} {
				rule := []string{direction, upName(n), "-j", "DROP"}
				if c == Silent {
					errs = append(errs, t.AppendUnique("filter", chainCut, rule...))
				} else {
					errs = append(errs, t.DeleteIfExists("filter", chainCut, rule...))
				}
			}
		}
		return errors.Join(errs...)
	})
	if err == nil && six && c != Carrier {
		err = address(router, upName(n), gateway6(n)) // an interface that goes down loses its IPv6 addresses
	}
	return err
}

// Shape is how thin an uplink is. The zero Shape is as fast as the machine.
type Shape struct {
	// Rate in bits a second, each way; 0 is no limit.
	Rate uint64 `json:"rate,omitempty"`
	// Loss is the probability, each way, that a packet is lost.
	Loss float64 `json:"loss,omitempty"`
}

// SetShape gives edge n's uplink that shape and no other.
func SetShape(router, edge host.Host, n int, s Shape) error {
	for _, end := range []struct {
		host host.Host
		name string
	}{{router, upName(n)}, {edge, uplink}} {
		if err := setRate(end.host, end.name, s.Rate); err != nil {
			return err
		}
	}
	return router.Do(func() error {
		all, err := families(chainLoss)
		if err != nil {
			return err
		}
		var errs []error
		for _, t := range all {
			errs = append(errs, setLoss(t, upName(n), s.Loss))
		}
		return errors.Join(errs...)
	})
}

func setLoss(t *iptables.IPTables, name string, loss float64) error {
	rules, err := t.List("filter", chainLoss)
	if err != nil {
		return fmt.Errorf("listing the rules of %s: %w", chainLoss, err)
	}
	var errs []error
	// From the last to the first, since numbers shift. The first line is the chain's own (-N).
	for i := len(rules) - 1; i >= 1; i-- {
		if concerns(rules[i], name) {
			errs = append(errs, t.DeleteById("filter", chainLoss, i))
		}
	}
	if loss > 0 {
		for _, direction := range []string{"-i", "-o"} {
			errs = append(errs, t.Append("filter", chainLoss, direction, name,
				"-m", "statistic", "--mode", "random", "--probability", strconv.FormatFloat(loss, 'f', 6, 64), "-j", "DROP"))
		}
	}
	return errors.Join(errs...)
}

// setRate puts a token bucket on the interface's outgoing packets, or removes it.
func setRate(h host.Host, name string, rate uint64) error {
	links, err := h.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	l, err := links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if rate == 0 {
		have, err := links.QdiscList(l)
		if err != nil {
			return fmt.Errorf("listing the queues of %s: %w", name, err)
		}
		for _, q := range have {
			if _, ours := q.(*netlink.Tbf); ours {
				if err := links.QdiscDel(q); err != nil {
					return fmt.Errorf("removing the limit of %s: %w", name, err)
				}
			}
		}
		return nil
	}
	const (
		burst = 16 << 10 // bytes; a bucket must hold at least one packet, and tbf(8) needs rate / HZ
		// queue is the buffer of a cheap modem: more would be delay, less would be loss.
		queue = 64 << 10
	)
	bytes := rate / 8
	bucket := netlink.Tbf{QdiscAttrs: attrs, Rate: bytes, Limit: queue, Buffer: netlink.Xmittime(bytes, max(burst, uint32(bytes/100)))}
	if err := links.QdiscReplace(&bucket); err != nil {
		return fmt.Errorf("limiting %s to %d bit/s: %w", name, rate, err)
	}
	return nil
}

// concerns reports whether a rule, as iptables prints it, is about the interface.
func concerns(rule, name string) bool {
	fields := strings.Fields(rule)
	for i, f := range fields[:max(len(fields)-1, 0)] {
		if (f == "-i" || f == "-o") && fields[i+1] == name {
			return true
		}
	}
	return false
}
