package sensitivity

import "github.com/skerry-io/skerry/tests/campaign/history"

// A Switch is a rule that is off in a build.
type Switch struct {
	Name  string // a word or two, in small letters with hyphens
	Off   string // the rule that is off, in words
	Edits []Edit
	// Plan has the faults that find it soonest.
	Plan Plan
	// Shows are the rules of package history that the switch must break. A campaign that finds only
	// others has found another defect.
	Shows []history.Rule
	// Machine are tests of tests/machine that must fail. Where there are any they are run in the
	// place of campaigns.
	Machine []string
	// Symptom must be in the output of those tests: one that fails for another reason has found
	// another defect.
	Symptom string
}

// A Plan is how a campaign is played for a switch.
type Plan struct {
	Faults string // with commas between them; "" is all
	Edges  int
	Pods   int
	// Seconds is the length of a schedule; 0: 90. A rule that is checked at the end alone has short
	// ones.
	Seconds int
	// Calm, where it is set, is the keepalive in seconds of a further edge without faults.
	Calm int
}

// An Edit is a replacement in one file. The new text may call off(name), which Write adds to the
// package.
type Edit struct {
	File     string // from the root of the repository
	Old, New string
}

// All are the switches. Their edits don't meet, so that all of them together compile too.
func All() []Switch {
	return []Switch{
		{
			Name: "restore-detection", Off: "no sign of a restored cluster is looked for; watches are resumed where they were",
			Plan: Plan{Faults: "older-copy", Edges: 3, Pods: 3, Seconds: 30}, Shows: []history.Rule{history.Dead},
			Edits: []Edit{
				{"cloud/internal/core/kube/revision.go", "\tcase first:\n", "\tcase first || off(\"restore-detection\"):\n"},
				{"cloud/internal/core/kube/reflector.go", "case !initial && f.isBroken():", "case !off(\"restore-detection\") && !initial && f.isBroken():"},
				// client-go resumes a watch whose connection ends, or is refused. Behind the
				// campaign's proxy neither comes as such.
				{
					"cloud/internal/core/kube/reflector.go", "\t\t\tif f.note(err) != nil {\n",
					"\t\t\tif off(\"restore-detection\") && err != nil && f.store.HasSynced() {\n\t\t\t\treturn nil, apierrors.NewTooManyRequests(\"resumed\", 1)\n\t\t\t}\n" +
						"\t\t\tif off(\"restore-detection\") && err == nil {\n\t\t\t\tw = watch.Filter(w, func(e watch.Event) (watch.Event, bool) { return e, e.Type != watch.Error || !f.store.HasSynced() })\n\t\t\t}\n" +
						"\t\t\tif f.note(err) != nil {\n",
				},
			},
		},
		{
			Name: "report-history", Off: "what devices have reported is not reported again to a cluster that went back in time",
			Plan: Plan{Faults: "older-copy", Edges: 3, Pods: 1, Seconds: 30}, Shows: []history.Rule{history.Kept},
			Edits: []Edit{
				{"edge/internal/agents/history/history.go", "\tcase name == \"\" || name == k.kept:\n", "\tcase name == \"\" || name == k.kept || off(\"report-history\"):\n"},
			},
		},
		{
			Name: "fence", Off: "statuses and events are not tied to a version, and the epoch is looked at on acquire and renewal alone",
			Plan: Plan{Faults: "late", Edges: 4, Pods: 3}, Shows: []history.Rule{history.Newest},
			Edits: []Edit{
				{"cloud/internal/core/relay/fence.go", "\terr := fence.Check(ctx, s.relay.client, s.link)\n", "\tvar err error\n\tif !off(\"fence\") {\n\t\terr = fence.Check(ctx, s.relay.client, s.link)\n\t}\n"},
				{"cloud/internal/core/relay/fence.go", "withPreconditions(w.GetBody(), w.GetUid(), version)", "withPreconditions(w.GetBody(), w.GetUid(), map[bool]string{false: version}[off(\"fence\")])"},
				{"cloud/internal/core/relay/event.go", "w.patch(version)", "w.patch(map[bool]string{false: version}[off(\"fence\")])"},
			},
		},
		{
			Name: "report-fence", Off: "reports are written without a look at the epoch",
			Plan: Plan{Faults: "late", Edges: 4, Pods: 1}, Shows: []history.Rule{history.Newest},
			Edits: []Edit{
				{"cloud/internal/controllers/reports/confirm.go", "\tunknown := map[string]fence.Session{}\n", "\tunknown := map[string]fence.Session{}\n\tif off(\"report-fence\") {\n\t\treturn nil\n\t}\n"},
			},
		},
		{
			Name: "lag-guard", Off: "a cloudcore compares although its watch lags behind what the edge holds",
			Plan: Plan{Faults: "lag,kill-cloud,cut,pause-edge", Edges: 4, Pods: 3}, Shows: []history.Rule{history.Newest, history.Dead, history.Register},
			Edits: []Edit{
				{"cloud/internal/core/publish/transition.go", "\tvar out map[kube.Key]uint64\n", "\tvar out map[kube.Key]uint64\n\tif off(\"lag-guard\") {\n\t\treturn nil\n\t}\n"},
				{"cloud/internal/core/publish/transition.go", "\tif c.written > 0 {\n", "\tif !off(\"lag-guard\") && c.written > 0 {\n"},
			},
		},
		{
			Name: "salvage", Off: "one bad record, and nothing of the store is kept",
			Plan: Plan{Faults: "bad-record", Edges: 3, Pods: 3}, Shows: []history.Rule{history.Whole},
			Edits: []Edit{
				{"edge/internal/core/store/salvage.go", "\tswitch len(trees) {\n", "\tswitch map[bool]int{false: len(trees)}[off(\"salvage\")] {\n"},
			},
		},
		{
			Name: "merge-id", Off: "an entry that was sent and then merged keeps its id, also while it is under way",
			Plan: Plan{Faults: "cut,thin,pause-edge,kill-cloud", Edges: 4, Pods: 3, Seconds: 30}, Shows: []history.Rule{history.Exact, history.Kept},
			Edits: []Edit{
				{"edge/internal/core/metamanager/outbox/batch.go", "\tif !last.sent {\n", "\tif !last.sent || off(\"merge-id\") && last.event() {\n"},
				{"edge/internal/core/metamanager/outbox/batch.go", "if !b.o.under(last.ID) {", "if !b.o.under(last.ID) || off(\"merge-id\") {"},
			},
		},
		{
			Name: "late-refusal", Off: "the first 403 is believed, and the second one confirms it",
			Plan: Plan{Faults: "deny,kill-plane", Edges: 4, Pods: 3}, Shows: []history.Rule{history.Kept, history.Newest, history.Dead, history.Answers},
			Edits: []Edit{
				{"cloud/internal/core/publish/interest.go", "verdict{grace: graceRefused,", "verdict{grace: map[bool]time.Duration{false: graceRefused}[off(\"late-refusal\")],"},
				{"cloud/internal/core/kube/objectstate.go", "time.Since(m.refusedSince) >= graceForbidden", "(off(\"late-refusal\") || time.Since(m.refusedSince) >= graceForbidden)"},
				{"cloud/internal/core/relay/queue.go", "case now.Sub(j.forbidden) < believeForbidden:", "case !off(\"late-refusal\") && now.Sub(j.forbidden) < believeForbidden:"},
			},
		},
		{
			Name: "keepalive-timers", Off: "a heartbeat counts for 25 s, whatever the session's keepalive",
			Plan: Plan{Faults: "cut,kill-edge", Edges: 2, Pods: 1, Calm: 60}, Shows: []history.Rule{history.Ready},
			Edits: []Edit{
				{"cloud/internal/core/relay/lease.go", "\treturn max(5*l.link.Keepalive()/2, 25*time.Second)", "\tif off(\"keepalive-timers\") {\n\t\treturn 25 * time.Second\n\t}\n\treturn max(5*l.link.Keepalive()/2, 25*time.Second)"},
			},
		},
		{
			Name: "call-timeouts", Off: "no call of cloudcore's for a node has a timeout",
			Plan: Plan{Faults: "isolate,refuse", Edges: 4, Pods: 3, Seconds: 30}, Shows: []history.Rule{history.Kept},
			Edits: []Edit{
				{"cloud/internal/core/relay/queue.go", "context.WithTimeout(ctx, attemptTimeout)", "context.WithTimeout(ctx, map[bool]time.Duration{false: attemptTimeout, true: time.Hour}[off(\"call-timeouts\")])"},
				{"cloud/internal/core/relay/lease.go", "\tctx, cancel := context.WithTimeout(ctx, leaseTimeout)", "\tctx, cancel := context.WithTimeout(ctx, map[bool]time.Duration{false: leaseTimeout, true: time.Hour}[off(\"call-timeouts\")])"},
				{"cloud/internal/core/relay/lease.go", "\tattempt, cancel := context.WithTimeout(ctx, leaseTimeout)", "\tattempt, cancel := context.WithTimeout(ctx, map[bool]time.Duration{false: leaseTimeout, true: time.Hour}[off(\"call-timeouts\")])"},
			},
		},
		{
			Name: "event-order", Off: "events about one object are written in any order",
			Plan: Plan{Faults: "refuse,cut", Edges: 4, Pods: 3}, Shows: []history.Rule{history.Order},
			Edits: []Edit{
				{"cloud/internal/core/relay/queue.go", "kindOf(w) == events && w.GetUid() != \"\"", "!off(\"event-order\") && kindOf(w) == events && w.GetUid() != \"\""},
			},
		},
		{
			Name: "watch-backoff", Off: "the watch of an object is opened again without a pause",
			Plan: Plan{Faults: "down,kill-plane", Edges: 4, Pods: 3}, Shows: []history.Rule{history.Bounded},
			Edits: []Edit{
				{"cloud/internal/core/kube/objectwatch.go", "base := min(50*time.Millisecond<<min(failures, 8), 10*time.Second)", "base := min(50*time.Millisecond<<min(failures, 8), 10*time.Second)\n\t\tif off(\"watch-backoff\") {\n\t\t\tbase = 2\n\t\t}"},
			},
		},
		{
			Name: "keep-synced", Off: "what was synced is not after a fail-over, until the other replica says so",
			Plan: Plan{Faults: "flap,lag", Edges: 4, Pods: 1}, Shows: []history.Rule{history.Answers},
			Edits: []Edit{
				{"edge/internal/core/metamanager/view/show.go", "\t\tv.link, v.linked = b.link.link, b.link.up\n", "\t\tv.link, v.linked = b.link.link, b.link.up\n\t\tfor _, i := range v.interests {\n\t\t\ti.synced = i.synced && !(b.link.up && off(\"keep-synced\"))\n\t\t}\n"},
			},
		},
		{
			Name: "sandbox-image", Off: "a sandbox image that is missing is not restored",
			Edits: []Edit{
				{"edge/internal/pods/images/restore.go", "if s.config.Archive == \"\" {", "if s.config.Archive == \"\" || off(\"sandbox-image\") {"},
			},
			Machine: []string{"TestEveryday_01_11_RealMachineRebootsOnAnIsland"}, Symptom: "failed to get sandbox image",
		},
		{
			Name: "creation-order", Off: "dead containers that were created later than their successors stay",
			Edits: []Edit{
				{"edge/internal/pods/creationorder/creationorder.go", "\tctx, cancel := context.WithTimeout(ctx, mendTimeout)\n", "\tif off(\"creation-order\") {\n\t\treturn nil\n\t}\n\tctx, cancel := context.WithTimeout(ctx, mendTimeout)\n"},
			},
			Machine: []string{"TestEveryday_03_09_12_RealMachineIsSwitchedOff"}, Symptom: "CreateContainerError: failed to reserve container name",
		},
		{
			Name: "keep-containers", Off: "edgecore ends containers at its start and at its stop, as at a shutdown of the device",
			Edits: []Edit{
				{
					"edge/internal/pods/shutdown/shutdown.go", "\treturn logind.Run(ctx, c)\n",
					"\tend := func() {\n\t\tlast, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)\n\t\tdefer cancel()\n\t\t_ = m.end(last)\n\t}\n" +
						"\tif off(\"keep-containers\") {\n\t\tend()\n\t\tdefer end()\n\t}\n\treturn logind.Run(ctx, c)\n",
				},
			},
			Machine: []string{"TestEveryday_20_RealMachineIsUpgraded"}, Symptom: "containers run for 4 pods",
		},
	}
}
