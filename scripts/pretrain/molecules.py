"""Small molecules of many kinds and their geometries, for the weights that trainings start from.

    python -m venv rd && rd/bin/pip install rdkit
    rd/bin/python scripts/pretrain/molecules.py runs/pretrain/molecules.json --count 1500

Every scaffold with every group, in a random order, behind a list of single ones, of at most 26
atoms. Molecules of benchmarks are left out (rMD17, 3BPA, ethanol of the demo, fulvene, the
molecules of benchmarks/trials), so that none of them is known to a network that starts from here.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rdkit import Chem
from rdkit.Chem import AllChem

SEED, MOST_ATOMS = 1, 26


def _words(text: str) -> list[str]:
    return text.split()


GROUPS = _words("""
    C CC C(C)C O OC N NC N(C)C F Cl S SC C#N C=O C(=O)C C(=O)O C(=O)N C(=O)OC NC(=O)C C=C C#C
    [N+](=O)[O-] S(=O)(=O)C C(F)(F)F CO CN COC C(=O)NC OC(=O)C C=NO P(C)C NN CC#N OP(=O)(O)O
""")

SCAFFOLDS = _words("""
    C{} CC{} CCC{} CC(C){} CC(C)(C){} C=C{} C=CC{} C#CC{} CC=C{} C1CC1{} C1CCC1{} C1CCCC1{}
    C1CCCCC1{} c1ccccc1{} c1ccncc1{} c1cccnc1{} c1ccc[nH]1{} c1ccoc1{} c1ccsc1{} c1cncn1{} C1COC1{}
    C1CO1{} C1CNCCC1{} C1COCCN1{} N1CCCC1{} c1cnc[nH]1{} c1cncnc1{} c1cnoc1{} C1CCOC1{} C1CN1{}
    C1=CCCC1{} C1=CCC=C1{} c1ccccc1C{} c1ccccc1O{} c1ccccc1N{} OCC{} NCC{} O=CC{} OC(=O)C{}
    NC(=O)C{} COC{} CSC{} FC(F){} ClC{} N#CC{} C=CC=C{} O=C1CCCN1{} O=C1CCCO1{} O=C1CCCC1{}
    c1ccc2[nH]ccc2c1{} c1ccc(F)cc1{} c1cc(O)ccc1{} c1cc(N)ccn1{} n1ccccc1O{} c1ccccc1OC{}
    Nc1cccnc1{}
""")

SINGLES = _words("""
    [H][H] O N C [C-]#[O+] O=C=O N#N C#N OO CO C=O C=C C#C CC CN F Cl S P C=C=C CC(=O)O NC=O O=CO
    CN=NC NC(=O)N NC(N)=N CN=C ON O=C(O)C(N)C O=C(O)CN CC(N)C(=O)NC CC(=O)NCC(=O)NC COC(=O)OC
    CC(=O)OC(C)=O CS(C)=O CSSC O=S=O C1=CC(=O)C=CC1=O O=c1cc[nH]cc1 O=c1cc[nH]c(=O)n1C
    c1ccc2ncccc2c1 c1ccc(-c2ccccc2)cc1 c1ccc(Oc2ccccc2)cc1 c1ccc(COC)cc1 c1ccc(CNC)cc1
    Cc1ccncc1N O=C(O)c1ccccc1C CC(=O)c1ccccc1O OC1COCC1O NC1CCCCC1O OCC(O)CO CC(=O)CC(=O)C
    CC=CC=O CNC(=O)C=C N#CC=CN CC(C)=NO CON CN(C)N=O CCOCC CCNCC CC(C)O CCCO CCCN CCOC OCCO NCCO
    NCCN OCCN(C)C c1ccc(cc1)C=Cc1ccncc1 O=Cc1ccco1 c1cnc2[nH]cnc2n1 Nc1ncnc2[nH]cnc12
    Cc1c[nH]c(=O)[nH]c1 c1ccc(nc1)N c1ccnc(c1)OC c1ccc(CO)cc1 c1ccccc1CC c1ccccc1CN
""")

LEFT_OUT = _words("""
    CCO CC(=O)Oc1ccccc1C(=O)O c1ccc(N=Nc2ccccc2)cc1 c1ccccc1 O=CCC=O O=CC=CO c1ccc2ccccc2c1
    CC(=O)Nc1ccc(O)cc1 O=C(O)c1ccccc1O Cc1ccccc1 O=c1cc[nH]c(=O)[nH]1 Nc1ncccc1OCc1ccccc1
    C=C1C=CC=C1 CNC(=O)CNc1ccccc1
""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, required=True, help="how many molecules")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found = list(islice(molecules(), options.count))
    options.output.write_text(json.dumps(found))
    print(len(found), "molecules,", sum(len(one["numbers"]) for one in found), "atoms")


def molecules() -> Iterator[dict[str, object]]:
    """Name (canonical SMILES), atomic numbers and positions in Å, each molecule once."""
    combined = [scaffold.format(group) for scaffold in SCAFFOLDS for group in GROUPS]
    random.Random(SEED).shuffle(combined)
    seen = {Chem.CanonSmiles(text) for text in LEFT_OUT}
    for text in SINGLES + combined:
        bare = Chem.MolFromSmiles(text)
        if bare is None or Chem.MolToSmiles(bare) in seen:
            continue
        whole = Chem.AddHs(bare)
        if whole.GetNumAtoms() > MOST_ATOMS or AllChem.EmbedMolecule(whole, randomSeed=SEED) != 0:
            continue
        if AllChem.MMFFHasAllMoleculeParams(whole):
            AllChem.MMFFOptimizeMolecule(whole)
        seen.add(Chem.MolToSmiles(bare))
        yield {
            "name": Chem.MolToSmiles(bare),
            "numbers": [atom.GetAtomicNum() for atom in whole.GetAtoms()],
            "positions": whole.GetConformer().GetPositions().round(4).tolist(),
        }


if __name__ == "__main__":
    main()
