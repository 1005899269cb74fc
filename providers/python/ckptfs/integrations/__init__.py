# SPDX-License-Identifier: Apache-2.0
"""The place for adapters to trainers (DeepSpeed, Lightning, ...).

One module each, importing its framework itself. All that an adapter does:

* save: `ckptfs.save_async(state, path)` in place of torch.save, in the
  framework's own names for files;
* update: `ckptfs.fence()` before the optimizer's step (the framework's hook,
  or `ckptfs.fence_before_step(optimizer)`), and let what it raises end the
  step;
* "saved": `Capture.wait("nvme")` (or "remote") before the framework writes its
  `latest`, as nothing is durable before;
* load: torch.load, as the files are torch's.
"""
