"""The batched simulator, with derived fields where Gymnasium's environments read them.

Gymnasium reads them straight after `mj_step`, which leaves them at the last point it evaluated (with RK4
the fourth stage of the last substep, micrometres off the newest state), and computes the
contact forces of that same point with `mj_rnePostConstraint`. Equal rewards and observations need both.
"""

import copy

import mujoco
import torch
from torch import Tensor

from ludus.envs.mujoco.simulator import CpuSimulator


class GymnasiumSimulator(CpuSimulator):
    """`CpuSimulator` whose derived fields are those `mj_step` left, `cfrc_ext` included."""

    def field(self, name: str) -> Tensor:
        if name == "cfrc_ext" and name not in self._fields:
            # MuJoCo computes it only on demand, so the batch has nothing to copy out.
            self._num_contacts = self._batch.bind("ncon")
            self._data, self._scratch = mujoco.MjData(self.model), copy.copy(self.model)
            self._fields[name] = torch.zeros((self.num_sims, self.model.nbody, 6), dtype=torch.float64)
        return super().field(name)

    def reset(self, rows: Tensor) -> None:
        super().reset(rows)
        if "cfrc_ext" in self._fields:
            self._fields["cfrc_ext"][rows] = 0.0  # a new episode of Gymnasium's begins without forces, too

    def _simulate(self) -> None:
        try:
            self._batch.step(None, self.substeps, int(mujoco.mjtStage.mjSTAGE_NONE.value))
        finally:  # one failed simulation must not cost the others their forces
            if "cfrc_ext" in self._fields:
                self._compute_contact_forces()

    def _compute_contact_forces(self) -> None:
        """About 10 µs a simulation in contact, to copy it out. The batch can only do it through a sensor,
        and sensors are evaluated where the substep started: other contacts, other forces.
        """
        forces = self._fields["cfrc_ext"].numpy()  # [sims, bodies, 6]
        forces[:] = 0.0
        for sim in self._num_contacts.nonzero()[0].tolist():
            self._batch.get_data(sim, self._data)
            model = self._batch.get_model(sim, self._scratch) if self._model_fields else self.model
            mujoco.mj_rnePostConstraint(model, self._data)
            forces[sim] = self._data.cfrc_ext
